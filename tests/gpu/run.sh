#!/usr/bin/env bash
# Runs the parts of the kit, each with a limit of time, on a machine with an NVIDIA GPU and its driver: nothing is installed,
# nothing is fetched. scripts/gpu_kit.sh makes the folder in which this lies.
#     ./run.sh [--out FOLDER] [--device cuda:0] [PART...]       # all parts; results: FOLDER/results.json, FOLDER/log.txt,
#                                                               # FOLDER/products.jsonl: times of each way of products
# The part `list` comes first. Where it finds no such device, nothing else is run.
# Parts over models write those at their first use: Q4_K and BF16 of 1B and 8B shape (up to 17 GB in TMPDIR). `llama` needs a
# llama-bench in the kit. KIT_QUICK=1 takes a tiny model and as little as shows that the parts over 8B work.
# SWARM_CUBLAS names the folder of cuBLAS where it is not found by itself; PART_SECONDS is the limit of each part but `list` instead of its own.
set -uo pipefail
kit=$(cd "$(dirname "$0")" && pwd) out=results device=cuda:0
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=$2; shift 2 ;;
    --device) device=$2; shift 2 ;;
    *) break ;;
  esac
done
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
work=${KIT_WORK:-} # of all parts: models are written once
[ -n "$work" ] || { work=$(mktemp -d) && export KIT_WORK=$work && trap 'rm -rf "$work"' EXIT; }
shape=8b lengths="32 128 512 2048 8192" few=(--repeat 3) sessions=1,8
[ -z "${KIT_QUICK:-}" ] || { shape=tiny lengths="8 24" few=(--repeat 1 --warmup 0 --new-tokens 2) sessions=1; }
bin=$kit/bin n=${device#cuda:}
[ -d "$bin" ] || tar -C "$kit" -xzf "$kit/programs.tar.gz" || exit 2

# made TYPE SHAPE: writes this model at its first use.
made() {
  local model=$work/$2-$1.gguf
  [ -f "$model" ] || { python3 "$kit/synthetic_model.py" "$model.part" --type "$1" --shape "$2" ${KIT_QUICK:+--blocks 3} && mv "$model.part" "$model"; }
}
# bench TYPE SHAPE OPTION...
bench() {
  local model=$work/$2-$1.gguf
  made "$1" "$2" && shift 2 && "$bin/swarm" bench --model "$model" --device "$device" "$@"
}
speed() { bench "$1" "$2" --local all --sessions 1,8,9,16 --context 0,4000; }
# Prompts of several lengths, each by itself.
prompts() {
  local n
  for n in $lengths; do bench "$1" "$shape" --local all --prompt-tokens "$n" "${few[@]}" || return; done
}
# llama.cpp over the same file: prompts of the same lengths, tokens after a context of 0 and 4,000.
llama() {
  local LD_LIBRARY_PATH=${SWARM_CUBLAS:-}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export LD_LIBRARY_PATH
  made "$1" "$shape" && "$bin/llama-bench" -m "$work/$shape-$1.gguf" -ngl 99 -p "${lengths// /,}" -n 128 -r 3 -o jsonl &&
    "$bin/llama-bench" -m "$work/$shape-$1.gguf" -ngl 99 -p 0 -n 128 -d 4000 -r 3 -o jsonl
}
sanitized() {
  command -v compute-sanitizer >/dev/null || { echo "there is no compute-sanitizer"; return 77; }
  for tool in memcheck racecheck; do
    for case in linear_of_every_type attention_while_decoding attention_of_several_prompts \
      moe_linear_of_every_type moe_linear_of_many_rows_for_an_expert; do
      compute-sanitizer --error-exitcode 9 --tool $tool "$bin/bench_cuda" "$n" --conformance=$case || return
    done
  done
}

# What the way of products of many rows is to be chosen by: a line of JSON each (device/cuda/products.c).
part_products() { "$bin/bench_cuda" "$n" --products | tee /dev/stderr | grep --line-buffered '^{' >"$out/products.jsonl"; }
part_list() {
  ! command -v nvidia-smi >/dev/null || nvidia-smi
  "$bin/swarm-node" --list-devices | tee "$work/devices"
  grep -q "^$device " "$work/devices" || { echo "$device is not here: the kit needs an NVIDIA GPU and its driver"; return 1; }
}
part_conformance() { "$bin/bench_cuda" "$n" --conformance; }
part_golden() { python3 "$kit/golden.py" "$bin/swarm" "$device" "$kit/golden"; }
part_sanitizer() { sanitized; }
part_kernels_1b() { "$bin/bench_cuda" "$n" --shape 1B; }
part_kernels_8b() { "$bin/bench_cuda" "$n" --shape 8B; }
part_model_1b() { speed Q4_K 1b; }
part_model_8b() { speed Q4_K 8b; }
part_model_8b_bf16() { speed BF16 8b; }
part_prompts_8b() { prompts Q4_K && prompts BF16; }
# One node and three that divide the card.
part_nodes_8b() {
  bench Q4_K "$shape" --nodes 1,3 --node-option=--device="$device" --sessions "$sessions" --prompt-tokens "${lengths%% *}" "${few[@]}"
}
part_llama_8b() {
  [ -x "$bin/llama-bench" ] || { echo "the kit has no llama-bench: SN_LLAMA_BENCH of scripts/gpu_kit.sh"; return 77; }
  llama Q4_K && llama BF16
}
declare -A limits=([list]=60 [products]=240 [conformance]=180 [golden]=120 [sanitizer]=400 [kernels_1b]=120 [kernels_8b]=240 [model_1b]=180 [model_8b]=300
  [model_8b_bf16]=400 [prompts_8b]=300 [nodes_8b]=300 [llama_8b]=300)
parts=(list conformance golden products kernels_1b kernels_8b model_1b model_8b model_8b_bf16 prompts_8b nodes_8b llama_8b sanitizer)

[ "${1:-}" != --part ] || { "part_$2"; exit; } # as this script calls itself, within the limit
[ $# -eq 0 ] || parts=("$@")
[ "${parts[0]}" = list ] || parts=(list "${parts[@]}")
for part in "${parts[@]}"; do [ -n "${limits[$part]:-}" ] || { echo "there is no part $part: ${!limits[*]}" >&2; exit 2; }; done
failed=0 separator= results=
: >"$out/log.txt"
for part in "${parts[@]}"; do
  begin=$(date +%s) limit=${limits[$part]}
  [ "$part" = list ] || limit=${PART_SECONDS:-$limit}
  printf '== %s\n' "$part" | tee -a "$out/log.txt"
  timeout -k 10 "$limit" bash "$kit/run.sh" --out "$out" --device "$device" --part "$part" 2>&1 </dev/null | tee -a "$out/log.txt"
  rc=${PIPESTATUS[0]}
  [ "$rc" = 0 ] || [ "$rc" = 77 ] || failed=1
  results+="$separator"$'\n'"  {\"part\": \"$part\", \"seconds\": $(($(date +%s) - begin)), \"limit\": $limit, \"rc\": $rc, \"timed_out\": $([ "$rc" = 124 ] || [ "$rc" = 137 ] && echo true || echo false)}"
  separator=,
  printf '[%s\n]\n' "$results" >"$out/results.json" # after each part: what a killed run has done stands
  [ "$part" != list ] || [ "$rc" = 0 ] || break
done
exit "$failed"
