#!/usr/bin/env bash
# A made model of DeepSeek-V3's block shape, about 1/28 as wide, in FP8 with scales beside the weights: two nodes serve its dense
# block and its mixtures, write what one process writes, and keep latent + rope (128 + 16) numbers of a token and block.
# docs/BENCHMARKS.md has the figures of the same at full width.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
mkdir "$scratch/made"
"$bin/tests/made_model" "$scratch/made" small || fail "the model was not made"
python3 -c 'import json; json.dump([i * 37 % 320 for i in range(100)], open("'"$scratch"'/ids", "w"))'
generate=("$bin/swarm" generate --model "$scratch/made" --ids-file "$scratch/ids" --ignore-eos --json)
succeeds "${generate[@]}" --max-tokens 24 --local all
expected=$(query "$scratch/run.out" 'd["ids"]')

start_node a "$scratch/made" 0:1 --metrics 0
start_node b "$scratch/made" 1:3 --metrics 0
wait_ready a b
page=$((32 * (128 + 16) * 2)) # bytes of 32 positions of a block, f16
for node in "a 1" "b 2"; do
  read -r name blocks <<<"$node"
  tokens=$(((64 << 20) / (page * blocks) * 32))
  grep -q "kv_cache=64.0 MiB ($tokens tokens)" "$scratch/$name.out" || fail "$name has not room for $tokens tokens: $(grep ^ready "$scratch/$name.out")"
done
join=(--join "${address[a]}" --join "${address[b]}")
succeeds "${generate[@]}" --max-tokens 24 "${join[@]}"
[ "$(query "$scratch/run.out" 'd["ids"]')" = "$expected" ] || fail "two nodes write another text than one process"

# A session that is held up: 100 positions and more, in whole pages.
start session "${generate[@]}" --max-tokens 100000 "${join[@]}"
wait_metric b kv_bytes $((4 * page * 2)) 60
signal session STOP
pause 0.3 # steps on their way
for node in "a 1" "b 2"; do
  read -r name blocks <<<"$node"
  bytes=$(metric "$name" kv_bytes)
  [ "$bytes" -ge $((4 * page * blocks)) ] && [ $((bytes % (page * blocks))) = 0 ] || fail "$name keeps $bytes bytes, which are no pages of $page bytes a block"
done
signal session CONT
signal session KILL
wait_end session 60
stop_node a
stop_node b
