#!/usr/bin/env bash
# Nodes and clients find each other, also when they start early or stop early.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$fixtures/golden/llama
golden_ids llama "$scratch/ids"

# The address of any node is enough to find all three.
start_three "$model"
for name in a b c; do
  for ((i = 0; i < 300; i++)); do # announcements take a moment to spread
    succeeds "$bin/swarm" status --join "${address[$name]}" --json
    found=$(query "$scratch/run.out" '" ".join(sorted(n["name"] for n in d["nodes"] if n["answered"])) + str(d["coverage"] and d["coverage"][0]["nodes_per_block"])')
    [ "$found" = "a b c[1, 1, 1, 1]" ] && break
    sleep 0.1
  done
  [ $i -lt 300 ] || fail "joining $name alone does not find all nodes and blocks, but $found"
done
stop_node b
succeeds "$bin/swarm" status --join "${address[a]}" --json
[ "$(query "$scratch/run.out" 'd["coverage"][0]["nodes_per_block"][1]')" = 0 ] || fail "a node that left still counts"
stop_node a
stop_node c
refuses 1 "no node answered at ${address[a]}" "$bin/swarm" status --join "${address[a]}" --timeout 1

# A node may start before the node that it joins, and a client before all nodes.
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
late=127.0.0.1:$port
start_node early "$model" 2:4 --join "$late"
start client "$bin/swarm" generate --model "$model" --join "$late" --ids-file "$scratch/ids" --max-tokens 8 --json --timeout 30
sleep 1
start_node late "$model" 0:2 --listen "$late"
wait_ready early late
wait_end client 60
[ $rc = 0 ] || fail "a client that was started before its nodes ended with $rc"
[ "$(query "$scratch/client.out" 'len(d["ids"])')" = 8 ] || fail "the early client has no tokens"
stop_node early
stop_node late

# SIGTERM while a node loads, or before: the node ends without a warning.
await_heed() { # waits until SIGTERM is blocked, because a thread handles it
  local i blocked
  for ((i = 0; i < 6000; i++)); do
    blocked=$(awk '/^SigBlk/ { print $2 }' "/proc/${pid[brief]}/status") && [ $((0x0$blocked & 0x4000)) != 0 ] && return
    sleep 0.01
  done
  fail "SIGTERM is not handled"
}
for delay in 0.005 0.01 0.05 heeded; do
  start_node brief "${SN_TEST_MODEL:-$model}" all
  if [ $delay = heeded ]; then await_heed; else sleep $delay; fi
  signal brief TERM
  wait_end brief 60
  [ $rc = 0 ] || [ $rc = 143 ] || fail "a node that was stopped (after $delay) ended with $rc"
  [ $rc = 143 ] && [ $delay = heeded ] && fail "SIGTERM killed a node that handles it"
  grep -E ' (warn|error) |^swarm-node:' "$scratch/brief.err" && fail "it printed a warning or an error"
done
exit 0
