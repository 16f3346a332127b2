#!/usr/bin/env bash
# Measures the subjects of docs/BENCHMARKS.md that bench_table.sh does not: for each the commands of the page, with their output.
# Let nothing else run for numbers that are to be published; the first line of each subject names machine, load, commit and date.
#
#     SN_BUILD=build tests/bench/subjects.sh MODEL.gguf [SUBJECT...]
#
# Subjects (default: all but server, strangers and python): kernels, step, rows, many, prompts, hop, links, prefill, bits, drafts, recovery,
# kvtypes, offload, training, server, strangers, python. QUICK=1 repeats nothing and shortens texts, to see that everything runs.
. "$(dirname "${BASH_SOURCE[0]}")/../system/lib.sh"
set -e
model=$1
shift
tiny=$fixtures/golden/llama
repeat=3 long=2000 contexts='128 512 2000' text=/usr/share/common-licenses/GPL-3
if [ -n "${QUICK-}" ]; then
  repeat=1 long=64 contexts=32 text=$scratch/text
  head -c 1500 /usr/share/common-licenses/GPL-3 >"$text"
fi

# show COMMAND...: prints the command as the page has it, then what it prints
show() {
  printf '\n    %s\n\n' "$(printf '%s ' "$@" | sed "s#$bin/##g; s#$model#M#g; s#$fixtures#tests/fixtures#g")"
  "$@" 2>"$scratch/err" || { tail -3 "$scratch/err" >&2; fail "$1 failed"; }
}
bench() { show "$bin/swarm" bench --model "$model" "$@" --repeat "$repeat"; }
bench_tiny() { show "$bin/swarm" bench --model "$tiny" --nodes 3 --prompt-tokens 240 --repeat "$repeat" --warmup 0 "$@"; }
links=(--emulate-link '1gbit,5ms' --emulate-link '100mbit,5ms' --emulate-link '100mbit,100ms')

kernels() { for isa in avx2 avx512 amx; do show "$bin/tests/bench_kernels" 1 $isa linear || true; done; }
step() { show "$bin/tests/bench_step" "$model"; }
rows() { show "$bin/tests/bench_kernels" 1 avx512 rows; }
many() {
  bench --nodes 1 --threads 2 --sessions 1,2,4,8,16 --prompt-tokens 16 --new-tokens 32
  bench --nodes 3 --threads 1 --sessions 1,8 --prompt-tokens 16 --new-tokens 32
}
prompts() { bench --nodes 1 --threads 2 --sessions 7 --prompt-tokens 64 --new-tokens 300 --concurrent-prefill $long; }
hop() { bench --nodes 1,3 --threads 1 --sessions 1 --prompt-tokens 16 --new-tokens 64; }
links() {
  bench --nodes 3 --prompt-tokens 128 --new-tokens 24 "${links[@]}"
  bench --nodes 3 --prompt-tokens 128 --new-tokens 24 "${links[@]}" --push
}
prefill() { for depth in 0 8; do bench_tiny --new-tokens 2 --emulate-link 1mbit,100ms --prefill-depth $depth; done; }
bits() {
  for type in f32 bf16 q8; do bench_tiny --new-tokens 8 --batch 1 --emulate-link 1mbit,5ms --emulate-link 1mbit,100ms --wire-dtype $type; done
}
drafts() {
  bench --nodes 3 --emulate-link 100mbit,100ms --draft ngram --draft-model "$model" --prompt-tokens 256 --new-tokens 64 --warmup 0
  bench --nodes 3 --emulate-link 100mbit,100ms --draft ngram --draft-model "$model" --prompt-tokens 256 --new-tokens 64 --warmup 0 --push
}
recovery() {
  for context in $contexts; do
    bench --nodes 3 --threads 1 --context "$context" --prompt-tokens 16 --new-tokens 60 --warmup 0 --kill none --kill replay \
      --kill migration --kill replica
  done
}
kvtypes() {
  for type in f32 f16 q8; do show "$bin/swarm" eval --model "$model" --local all --kv-dtype $type --file "$text"; done
  show "$bin/tests/bench_kernels" 1 avx512 attention
}
offload() {
  for where in host disk; do
    bench --nodes 1 --threads 2 --prompt-tokens 256 --new-tokens 16 --node-option=--device-map=0:30=$where \
      --node-option=--offload-dir="$scratch/blocks"
  done
}
training() {
  for t in 1 2; do bench --local all --threads $t --train lora --batch 4 --prompt-tokens 128 --warmup 1; done
  bench --nodes 1,3 --threads 1 --train lora --batch 4 --prompt-tokens 128 --warmup 1
}
server() { show python3 "$here/../bench/server_cost.py" "$bin" "$model" 16 64 64 6; }
python() {
  SWARM_LIBRARY=$bin/libswarm.so PYTHONPATH=$here/../../python show python3 "$here/../../python/tests/measure_cost.py" "$model" 5
  SWARM_LIBRARY=$bin/libswarm.so PYTHONPATH=$here/../../python show python3 "$here/../../python/tests/measure_links.py" "$model"
}
# One client that decodes, alone and beside a stranger with sessions of its own.
strangers() {
  local asked='--threads 1 --prompt-tokens 16 --new-tokens 64' sessions rows
  start_node a "$model" all
  wait_ready a
  # shellcheck disable=SC2086 # the options are words
  bench --join "${address[a]}" $asked
  for attack in '16 1' '1 1' '4 256'; do
    read -r sessions rows <<<"$attack"
    KEYS=1 SESSIONS=$sessions ROWS=$rows start stranger python3 "$here/../attacks/stranger.py" "${address[a]}" greedy 30
    echo "one key, $sessions sessions, steps of $rows rows"
    # shellcheck disable=SC2086
    bench --join "${address[a]}" $asked
    signal stranger TERM
    wait_end stranger 60
  done
  stop_node a
}

for subject in ${*:-kernels step rows many prompts hop links prefill bits drafts recovery kvtypes offload training}; do
  echo
  echo "## $subject: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg)," \
    "$(git -C "$here" describe --always --dirty 2>/dev/null || echo no commit), $(date +%F)"
  $subject
done
