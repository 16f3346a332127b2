#!/usr/bin/env bash
# Nodes that die, hang or leave while text is being written.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$fixtures/golden/llama
golden_ids llama "$scratch/ids"
tokens=200

generate=("$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --max-tokens $tokens --ignore-end --json)
succeeds "${generate[@]}" --local all
expected=$(query "$scratch/run.out" 'd["ids"]')

# a: 0:2, slowed down so that there is time; b1 and b2: 2:4, one of which is used.
start_two_holders() {
  start_node a "$model" 0:2
  wait_ready a
  start_node b1 "$model" 2:4 --join "${address[a]}"
  start_node b2 "$model" 2:4 --join "${address[a]}"
  wait_ready b1 b2
  sleep 0.3
}

# begin OPTION...: generates in the background until it has come some way, and holds it there, since a stands still until
# SIGCONT. victim: the node that has its session for blocks 2:4.
begin() {
  local try i
  for ((try = 0; try < 5; try++)); do
    slow a
    start client "${generate[@]}" --join "${address[a]}" "$@"
    victim=""
    for ((i = 0; i < 600; i++)); do
      run "$bin/swarm" status --join "${address[a]}" --json
      victim=$(query "$scratch/run.out" '(lambda l: l[0] if len(l) == 1 else "")([n["name"] for n in d["nodes"] if n["name"] != "a" and n.get("steps", 0) and n["sessions"]])' 2>/dev/null)
      [ -n "$victim" ] && break
      kill -0 "${pid[client]}" 2>/dev/null || break
    done
    kill "${pid[slow]}" 2>/dev/null
    wait "${pid[slow]}" 2>/dev/null
    unset "pid[slow]"
    signal a STOP
    sleep 0.1
    [ -n "$victim" ] && kill -0 "${pid[client]}" 2>/dev/null && return
    signal a CONT # it was over too soon
    wait_end client 60
  done
  fail "no node has a session"
}

# same_text SECONDS: the client ends in time, with the tokens that it would have given, at the other holder.
same_text() {
  local other=b1
  [ "$victim" = b1 ] && other=b2
  wait_end client "$1"
  [ $rc = 0 ] || fail "generate ended with $rc"
  [ "$(query "$scratch/client.out" 'd["ids"]')" = "$expected" ] || fail "other tokens after the failure of $victim"
  query "$scratch/client.out" '" ".join(h["node"] for h in d["timings"]["hops"])' | grep -q "$other" ||
    fail "the failover to $other did not happen: it was over before $victim failed"
}

for push in "" --push; do
  start_two_holders
  begin $push
  kill_node "$victim"
  signal a CONT
  same_text 20 # less than --timeout, which is 30
  end_all

  start_two_holders
  begin $push
  signal "$victim" TERM # it hands its session over and leaves: nothing is computed again
  signal a CONT
  same_text 20
  wait_end "$victim" 60
  [ $rc = 0 ] || fail "a node asked to stop in mid-generation left with $rc"
  [ "$(query "$scratch/client.out" '[d["timings"][k] for k in ("failovers", "taken_over", "replayed_tokens")]')" = "[1, 1, 0]" ] ||
    fail "$victim did not hand its session over: $(query "$scratch/client.out" 'd["timings"]')"
  end_all

  start_two_holders
  begin --kv-replica $push
  kill_node "$victim"
  signal a CONT
  same_text 20
  [ "$(query "$scratch/client.out" '[d["timings"]["taken_over"], d["timings"]["replayed_tokens"] < 3]')" = "[1, True]" ] ||
    fail "the copy of $victim was not gone on with: $(query "$scratch/client.out" 'd["timings"]')"
  end_all

  start_two_holders
  begin --timeout 5 $push
  signal "$victim" STOP # hangs
  signal a CONT
  same_text 60
  end_all
done

# Nobody else holds the blocks: an error that names them, within --timeout.
for fault in KILL STOP; do
  start_node a "$model" 0:2
  wait_ready a
  start_node b1 "$model" 2:4 --join "${address[a]}"
  wait_ready b1
  sleep 0.3
  begin --timeout 5
  signal b1 $fault
  signal a CONT
  before=$(now_ms)
  wait_end client 60
  took=$(($(now_ms) - before))
  [ $took -lt 30000 ] || fail "SIG$fault of the only holder was told after $took ms, with --timeout 5"
  [ $rc = 1 ] || fail "generate ended with $rc instead of 1 when b1 got SIG$fault"
  tail -n 1 "$scratch/client.err" | grep -q '2:4' || fail "the sentence does not name the blocks 2:4"
  echo "SIG$fault and no other holder: told after $took ms"
  end_all
done
