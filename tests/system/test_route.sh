#!/usr/bin/env bash
# swarm route: the planned route of a token, and why other nodes are rejected.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$fixtures/golden/llama
start_three "$model"
start_node whole "$model" 0:4 --join "${address[a]}"
start_node small "$model" 1:3 --join "${address[a]}" --kv-memory 16KiB
wait_ready whole small
route=("$bin/swarm" route --model "$model" --join "${address[a]}" --explain)

# why NAME: the reason for which the node is rejected, "" if it is on the route.
why() { query "$scratch/run.out" '"".join(n["reason"] for n in d["rejected"] if n["node"] == "'"$1"'")'; }
hops() { query "$scratch/run.out" '" ".join(h["node"] + "=" + h["blocks"] for h in d["hops"])'; }

for ((i = 0; i < 300; i++)); do # announcements take a moment to spread
  run "${route[@]}" --json
  [ "$(query "$scratch/run.out" 'len(d["hops"]) + len(d["rejected"])')" = 5 ] && break
  sleep 0.2
done
[ $i -lt 300 ] || fail "not every node is explained: $(cat "$scratch/run.out")"
query "$scratch/run.out" '1/(0 < d["cost_us"] == round(sum(h["network_us"] + h["queue_us"] + h["compute_us"] for h in d["hops"]) + d["return_us"], 3) or 0)' >/dev/null ||
  fail "the costs do not add up: $(cat "$scratch/run.out")"

succeeds "${route[@]}" --json --deny whole
[ "$(hops)" = "a=0:1 b=1:3 c=3:4" ] && [ "$(why small)" = "no KV memory" ] || fail "without the whole: $(hops), small: $(why small)"
[ "$(why whole)" = denied ] || fail "whole: $(why whole)"
succeeds "${route[@]}" --json --only whole
[ "$(hops)" = "whole=0:4" ] && [ "$(why a)" = "not among --only" ] || fail "only the whole: $(hops), a: $(why a)"
succeeds "${route[@]}" --json --only whole --only a --route-seed 1
[[ "$(why a)" =~ ^slower\ by\ [0-9.]+\ ms$ ]] || [[ "$(hops)" =~ ^a ]] || fail "a: $(why a)"

# Three near nodes are faster than one that is far away: half a second, by an emulated link. The RTT of nodes on the route is measured.
start_node far "$model" 0:4 --join "${address[a]}" --emulate-link 1gbit,500ms
wait_ready far
for ((i = 0; i < 300; i++)); do
  run "${route[@]}" --json --deny whole
  [ "$(hops)" = "a=0:1 b=1:3 c=3:4" ] && [[ "$(why far)" =~ ^slower\ by ]] && break # a node's answer to a measurement may be late
  sleep 0.2
done
[ "$(hops)" = "a=0:1 b=1:3 c=3:4" ] && [[ "$(why far)" =~ ^slower\ by ]] || fail "near or far: $(hops), far: $(why far)"
[ "$(query "$scratch/run.out" 'all(h["rtt_measured"] for h in d["hops"])')" = True ] || fail "the RTTs of the route were not measured"

# The output as text; and without a route.
succeeds "${route[@]}" --only whole
grep -q '^a token takes [0-9.]* ms over 1 hop$' "$scratch/run.out" && grep -q 'not among --only$' "$scratch/run.out" || fail "$(cat "$scratch/run.out")"
refuses 1 'no node serves blocks 1:3 ' "${route[@]}" --only a --only c
grep -q '^1:3 *b *not among --only$' "$scratch/run.out" || fail "rejected nodes are not shown when there is no route"
refuses 2 'must be latency or throughput' "${route[@]}" --route scenic
refuses 2 'give --join' "$bin/swarm" route --model "$model"

# The same seed samples the same route.
succeeds "${route[@]}" --json --route throughput --route-seed 7
first=$(hops)
succeeds "${route[@]}" --json --route throughput --route-seed 7
[ "$(hops)" = "$first" ] || [ -n "$(query "$scratch/run.out" '[n for n in d["rejected"] if "online" in n["reason"]] or ""')" ] || fail "seed 7 sampled $first, then $(hops)"
exit 0
