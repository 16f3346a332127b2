#!/usr/bin/env bash
# Strangers open connections of every kind to a node with 1,024 descriptors: they claim routing ids, send nothing, send garbage,
# and come as other sockets. New clients are served meanwhile with the same text, and the node lives.
. "$(dirname "${BASH_SOURCE[0]}")/../system/lib.sh"
model=$fixtures/golden/llama
python3 -c 'import zmq, msgpack' 2>/dev/null || skip "python3-zmq or python3-msgpack is missing"
ulimit -Sn 1024
golden_ids llama "$scratch/ids"
start_node a "$model" all --log-level info --drain-timeout 0
wait_ready a
text=("$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --max-tokens 8 --json --join "${address[a]}")
succeeds "$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --max-tokens 8 --json --local all
ids=$(query "$scratch/run.out" 'd["ids"]')

# attack WHAT SOURCE: three new clients are served during the attack.
attack() {
  rm -f "$scratch/end"
  start attacker python3 "$fixtures/../attacks/connections.py" "${address[a]}" "$1" "$2" "$scratch/end"
  sleep 1.5
  for _ in 1 2 3; do
    succeeds "${text[@]}"
    [ "$(query "$scratch/run.out" 'd["ids"]')" = "$ids" ] || fail "the text differs during the attack $1 from $2"
  done
  touch "$scratch/end"
  wait_end attacker 60
  [ $rc = 0 ] || fail "the attacker failed ($1)"
  cat "$scratch/attacker.out"
  kill -0 "${pid[a]}" 2>/dev/null || fail "the attack $1 ended the node"
}
attack routing-ids 127.0.0.2
attack silent 127.0.0.3
attack silent 127.0.0.1 # the address of the honest clients
attack garbage 127.0.0.4
attack sockets 127.0.0.5
# Three places in the program write of connections, each at most 11 lines in 10 seconds.
lines=$(grep -c 'connection ' "$scratch/a.err")
[ "$lines" -lt $((120 + 5 * SECONDS)) ] || fail "the attacks made the node write $lines lines"
succeeds "${text[@]}"
stop_node a
