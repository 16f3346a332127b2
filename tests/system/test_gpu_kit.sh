#!/usr/bin/env bash
# What travels to a machine with a GPU (scripts/gpu_kit.sh), on the emulated one: a golden family on the device, one case of the
# conformance suite, and parts that end at their limit of time, with results that say so.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
tests=$(realpath "$here/..") programs=$bin
emulate
kit=$scratch/kit
[ -x "$programs/tests/emulated_bench_cuda" ] || skip "emulated_bench_cuda is not built"
mkdir -p "$kit/bin" "$kit/golden"
cp "$tests/gpu/run.sh" "$tests/gpu/golden.py" "$kit/"
ln -s "$(realpath "$bin")"/* "$(realpath "$programs/tests/emulated_bench_cuda")" "$kit/bin/"
mv "$kit/bin/emulated_bench_cuda" "$kit/bin/bench_cuda"
ln -s "$(realpath "$fixtures/golden/llama")" "$kit/golden/"

succeeds "$kit/run.sh" --out "$scratch/results" list golden
[ "$(query "$scratch/results/results.json" '[(p["part"], p["rc"], p["timed_out"]) for p in d]')" = "[('list', 0, False), ('golden', 0, False)]" ] ||
  fail "other results: $(cat "$scratch/results/results.json")"
[ "$(grep -c 'llama passed' "$scratch/results/log.txt")" = 2 ] || fail "no family was compared: $(cat "$scratch/results/log.txt")"

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
