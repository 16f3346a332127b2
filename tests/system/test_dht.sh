#!/usr/bin/env bash
# Nodes and a client that know only the address of a DHT node. OpenDHT listens on every address of the machine, so that this test
# runs in a network namespace of its own.
if [ -z "${SN_OWN_NETWORK:-}" ]; then
  unshare -n true 2>/dev/null || { echo "a network namespace of its own is not permitted here"; exit 77; }
  SN_OWN_NETWORK=1 exec unshare -n bash "$0" "$@"
fi
ip link set lo up || { echo "loopback cannot be set up: install iproute2"; exit 77; }
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$fixtures/golden/llama
golden_ids llama "$scratch/ids"
run "$bin/swarm" generate --model "$model" --dht 127.0.0.1:9 --timeout 1 --ids-file "$scratch/ids" --max-tokens 1
tail -n 1 "$scratch/run.err" | grep -q 'no OpenDHT' && skip "the programs are built without OpenDHT"
refuses 2 'HOST:PORT' "$bin/swarm" generate --model "$model" --dht nonsense --ids-file "$scratch/ids" --max-tokens 1

table=127.0.0.1:34222
start_node a "$model" 0:2 --dht on --dht-port 34222
wait_ready a
refuses 2 'another --dht-port' "$bin/swarm-node" --model "$model" --blocks 0:2 --listen 127.0.0.1:0 --dht on --dht-port 34222
start_node b "$model" auto:2 --dht $table
wait_ready b
grep -q 'blocks=2:4/4' "$scratch/b.out" || fail "the second node did not find the first one in the DHT: $(cat "$scratch/b.out")"
succeeds "$bin/swarm" generate --model "$model" --local all --ids-file "$scratch/ids" --max-tokens 8 --json
expected=$(query "$scratch/run.out" 'd["ids"]')
succeeds "$bin/swarm" generate --model "$model" --dht $table --ids-file "$scratch/ids" --max-tokens 8 --json --timeout 20
[ "$(query "$scratch/run.out" 'd["ids"]')" = "$expected" ] || fail "the text over nodes found in the DHT differs"
succeeds "$bin/swarm" status --model "$model" --dht $table --json
[ "$(query "$scratch/run.out" 'd["coverage"][0]["nodes_per_block"]')" = "[1, 1, 1, 1]" ] || fail "coverage is wrong"

# The DHT holds no records of another model there; a record outlives its node, and the client does not take a record for a sign of life.
refuses 1 'no node of this model was found' "$bin/swarm" generate --model "$fixtures/golden/mistral" --dht $table \
  --ids-file "$scratch/ids" --max-tokens 1 --timeout 2
stop_node b
refuses 1 'blocks 2:4|no node|no way' "$bin/swarm" generate --model "$model" --dht $table --ids-file "$scratch/ids" --max-tokens 1 --timeout 3
stop_node a
