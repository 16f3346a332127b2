#!/usr/bin/env bash
# Floods of bytes, junk, announcements, training and sessions from four unknown clients: another client is served meanwhile with the same
# text, the node's memory stays bounded, and the four clients hold no more sessions than --client-sessions allows.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$fixtures/golden/llama
golden_ids llama "$scratch/ids"
python3 -c 'import zmq, msgpack' 2>/dev/null || skip "python3-zmq and python3-msgpack are missing"
start_node a "$model" all --max-sessions 64 --log-level warn --client-sessions 4 --drain-timeout 0
wait_ready a
text=("$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --max-tokens 8 --json --join "${address[a]}")
succeeds "$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --max-tokens 8 --json --local all
ids=$(query "$scratch/run.out" 'd["ids"]')
succeeds "$bin/swarm" status --join "${address[a]}" --json
MODEL=$(query "$scratch/run.out" 'd["nodes"][0]["model"]')
export MODEL
memory_mib() { awk '/^VmRSS/ { print int($2 / 1024) }' "/proc/${pid[a]}/status"; }
before=$(memory_mib)
export SHAPE=256,64,4
for what in bytes junk announcements training sessions; do
  start flood python3 "$here/flood_client.py" "${address[a]}" $what 2
  sleep 0.7
  succeeds "${text[@]}"
  [ "$(query "$scratch/run.out" 'd["ids"]')" = "$ids" ] || fail "the text differs during a flood of $what"
  wait_end flood 60
  [ $rc = 0 ] || { cat "$scratch/flood.err" >&2; fail "the flooding client failed ($what)"; }
  cat "$scratch/flood.out"
  after=$(memory_mib)
  [ $((after - before)) -lt 400 ] || fail "a flood of $what made the node grow from $before to $after MiB"
done
four_each() {
  succeeds "$bin/swarm" status --join "${address[a]}" --json
  [ "$(query "$scratch/run.out" 'd["nodes"][0].get("sessions")')" = 16 ]
}
wait_until 20 four_each
stop_node a
