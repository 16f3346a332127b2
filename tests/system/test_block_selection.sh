#!/usr/bin/env bash
# Nodes that choose their blocks themselves: three cover a model together; when one leaves, a redundant one moves.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$fixtures/golden/llama
golden_ids llama "$scratch/ids"

coverage() { # nodes per block, as node NAME knows it
  "$bin/swarm" status --join "${address[$1]}" --json >"$scratch/status" 2>/dev/null || return 1
  query "$scratch/status" 'd["coverage"][0]["nodes_per_block"]'
}
# wait_coverage NAME PATTERN SECONDS
wait_coverage() {
  local until=$(($(now_ms) + $3 * 1000))
  until coverage "$1" 2>/dev/null | grep -Eq "$2"; do
    [ "$(now_ms)" -lt "$until" ] || fail "the coverage is $(coverage "$1"), not $2"
    sleep 0.2
  done
}

# The reference: the whole model in one process.
succeeds "$bin/swarm" generate --model "$model" --local all --ids-file "$scratch/ids" --max-tokens 12 --json
expected=$(query "$scratch/run.out" 'd["ids"]')

start_node a "$model" auto:2
wait_ready a
start_node b "$model" auto:1 --join "${address[a]}"
start_node c "$model" auto:1 --join "${address[a]}"
wait_ready b c
wait_coverage a '\[1, 1, 1, 1\]' 60
succeeds "$bin/swarm" generate --model "$model" --join "${address[b]}" --ids-file "$scratch/ids" --max-tokens 12 --json
[ "$(query "$scratch/run.out" 'd["ids"]')" = "$expected" ] || fail "the text over nodes that chose their blocks differs"

stop_node c
stop_node b
stop_node a

# Two nodes choose the half that no node serves, while three given nodes serve the other one; when these leave, one of the two moves.
start_node p "$model" 2:4
wait_ready p
start_node q "$model" 2:4 --join "${address[p]}"
start_node r "$model" 2:4 --join "${address[p]}"
mkdir -p "$scratch/adapters" # published adapters move with the node
cp -r "$fixtures/peft/lora/end" "$scratch/adapters/tuned"
adapters=(--adapters "$scratch/adapters")
start_node d "$model" auto:2 --join "${address[p]}" --rebalance-every 2 "${adapters[@]}"
wait_ready q r d
grep -q 'blocks=0:2/4' "$scratch/d.out" || fail "it did not choose the uncovered blocks: $(cat "$scratch/d.out")"
start_node e "$model" auto:2 --join "${address[d]}" --rebalance-every 2 "${adapters[@]}"
wait_ready e
both=$(cat "$scratch/d.out" "$scratch/e.out" | grep -c 'blocks=0:2/4') # e chose the half with three nodes, or the one with one node
stop_node p
stop_node q
stop_node r
wait_coverage d '\[[12], [12], [12], [12]\]' 60
[ "$both" -lt 2 ] || grep -q ' rebalancing ' "$scratch/d.err" "$scratch/e.err" || fail "no node has moved"
succeeds "$bin/swarm" generate --model "$model" --join "${address[d]}" --ids-file "$scratch/ids" --max-tokens 12 --json
[ "$(query "$scratch/run.out" 'd["ids"]')" = "$expected" ] || fail "the text differs after a move"
succeeds "$bin/swarm" generate --model "$model" --local all --ids-file "$scratch/ids" --max-tokens 12 --json --adapter "$fixtures/peft/lora/end"
adapted=$(query "$scratch/run.out" 'd["ids"]')
[ "$adapted" != "$expected" ] || fail "the adapter changes nothing"
succeeds "$bin/swarm" generate --model "$model" --join "${address[d]}" --ids-file "$scratch/ids" --max-tokens 12 --json --adapter name:tuned
[ "$(query "$scratch/run.out" 'd["ids"]')" = "$adapted" ] || fail "the text with the published adapter differs after a move"
stop_node d
stop_node e

# With all defaults: five nodes serve both halves; the two of one half leave, and one of the three others fills the gap, long before it
# would consider other blocks at its own time.
start_node s0 "$model" auto:2
wait_ready s0
for i in 1 2 3 4; do start_node s$i "$model" auto:2 --join "${address[s0]}"; done
wait_ready s1 s2 s3 s4
wait_coverage s0 '\[2, 2, 3, 3\]|\[3, 3, 2, 2\]' 60
half=$(coverage s0 | grep -q '^\[2' && echo 0:2 || echo 2:4) staying=()
for i in 4 3 2 1 0; do
  if grep -q "blocks=$half/4" "$scratch/s$i.out"; then stop_node s$i; else staying+=(s$i); fi
done
wait_coverage "${staying[0]}" '\[1, 1, 2, 2\]|\[2, 2, 1, 1\]' 90
pause 3
moved=$(for name in "${staying[@]}"; do grep -h ' rebalancing ' "$scratch/$name.err"; done | wc -l)
[ "$moved" = 1 ] || fail "$moved nodes moved to the gap"
for name in "${staying[@]}"; do stop_node "$name"; done

refuses 2 'auto:5|at most 4|1 to 4' "$bin/swarm-node" --model "$model" --blocks auto:5
refuses 2 'give --blocks A:B' "$bin/swarm-node" --model "$model" --blocks auto:2 --device-map 0:2=cpu
