#!/usr/bin/env bash
# Many nodes die at one moment, and nodes die one at a time and return at their addresses: no text ends while one node lives.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
text_model
model=$scratch/model
golden_ids llama "$scratch/ids"
generate=("$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --max-tokens 100 --ignore-eos --json)
succeeds "${generate[@]}" --local all
expected=$(query "$scratch/run.out" 'd["ids"]')

# all_but_one N: N nodes die while one of them computes a text, and one lives. Its link makes it the slowest, so that the text begins at
# another one; theirs makes the text last seconds. False: the text had ended before.
all_but_one() {
  local name until join names=$(eval "echo d{1..$1}")
  start_node lives "$model" all --metrics 0 --emulate-link 1gbit,60ms
  wait_ready lives
  for name in $names; do start_node "$name" "$model" all --metrics 0 --join "${address[lives]}" --emulate-link 1gbit,20ms; done
  wait_ready $names
  wait_metric lives announcements $((1 + $1)) 60
  join=(--join "${address[lives]}")
  for name in $names; do join+=(--join "${address[$name]}"); done # none of them is a stranger
  start client "${generate[@]}" "${join[@]}"
  used=
  until=$(($(now_ms) + 60000))
  while [ -z "$used" ] && kill -0 "${pid[client]}" 2>/dev/null; do
    [ "$(now_ms)" -lt "$until" ] || fail "no node computes"
    for name in $names; do [ "$(metric "$name" steps_total)" -lt 5 ] || used=$name; done
  done
  for name in $names; do signal "$name" KILL; done
  wait_end client 100
  [ $rc = 0 ] || fail "$1 nodes died: generate ended with $rc"
  [ "$(query "$scratch/client.out" "d['ids'] == $expected")" = True ] || fail "$1 nodes died: other tokens"
  used=$(query "$scratch/client.out" "d['timings']['failovers'], d['timings']['hops'][0]['node'].split('@')[0]")
  end_all
  [ "$used" = "(1, 'lives')" ]
}
for dying in 1 6; do
  for try in {1..6}; do all_but_one $dying && break; done || :
  [ "$used" = "(1, 'lives')" ] || fail "no text was in the middle when $dying nodes died: $used"
done

# -- one at a time, with new keys at the same address each time
start_node n0 "$model" all --client-sessions 0
wait_ready n0
for i in 1 2; do start_node n$i "$model" all --client-sessions 0 --join "${address[n0]}"; done
wait_ready n1 n2
start server "$bin/swarm" serve --model "$model" --served-model-name tiny --listen 127.0.0.1:0 --max-sessions 3 --timeout 60 \
  --join "${address[n0]}" --join "${address[n1]}" --join "${address[n2]}"
wait_ready server
start client timeout -k 2 300 python3 "$here/serve_client.py" while_nodes_die "http://${address[server]}" "$scratch/stop"
wait_file stop.begun
for ((round = 0; round < 9; round++)); do
  i=$((round % 3))
  kill_node n$i
  pause 0.2
  start_node n$i "$model" all --client-sessions 0 --listen "${address[n$i]}" --join "${address[n$(((i + 1) % 3))]}" \
    --join "${address[n$(((i + 2) % 3))]}"
  wait_ready n$i
  pause 0.3
done
touch "$scratch/stop"
wait_end client 200
[ $rc = 0 ] || fail "an answer failed while nodes died and returned"
end_all

# -- the only joined node returns with new keys, and then the other one dies that the client knows
ask() { timeout -k 2 100 python3 "$here/serve_client.py" answered "$url" || fail "no answer $1"; }
start_node n0 "$model" all
wait_ready n0
start_node n1 "$model" all --join "${address[n0]}"
wait_ready n1
start server "$bin/swarm" serve --model "$model" --served-model-name tiny --listen 127.0.0.1:0 --max-sessions 1 --join "${address[n0]}"
wait_ready server
url=http://${address[server]}
ask "at first"
kill_node n0
ask "after the death of a node"
start_node n0 "$model" all --listen "${address[n0]}"
wait_ready n0
kill_node n1
ask "although the joined node is back"
end_all

# -- two nodes that know only each other: one returns with new keys at its address, and they find each other again
start_node n0 "$model" all --metrics 0
wait_ready n0
start_node n1 "$model" all --metrics 0 --join "${address[n0]}"
wait_ready n1
wait_metric n1 announcements 2 60
kill_node n0
start_node n0 "$model" all --metrics 0 --listen "${address[n0]}"
wait_ready n0
wait_metric n0 announcements 2 90
