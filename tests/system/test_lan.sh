#!/usr/bin/env bash
# Machines of one local network need no address: two nodes and a client find each other with --join lan.
. "$(dirname "${BASH_SOURCE[0]}")/nat.sh"
model=$fixtures/golden/llama
golden_ids llama "$scratch/ids" 8
host a 11
host b 12
host c 13
start_at a "$model" 0:2 --join lan
start_at b "$model" 2:4 --join lan
wait_ready a b
succeeds ip netns exec c "$bin/swarm" generate --model "$model" --join lan --ids-file "$scratch/ids" --max-tokens 24 --ignore-eos --json --timeout 60
cp "$scratch/run.out" "$scratch/through"
succeeds "$bin/swarm" generate --model "$model" --local all --ids-file "$scratch/ids" --max-tokens 24 --ignore-eos --json
[ "$(query "$scratch/through" 'd["ids"]')" = "$(query "$scratch/run.out" 'd["ids"]')" ] || fail "the text of the local network is another one"
wait_log a 'reached by others.*how=direct address=203.0.113.11:31330' 60
wait_log b 'reached by others.*how=direct address=203.0.113.12:31330' 60
stop_node a
stop_node b
exit 0
