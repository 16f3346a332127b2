#!/usr/bin/env bash
# Experts that rest in host memory or on disk, in the real programs: the bits of a node that holds all of them, a plan that says how
# many are there at a time, metrics that count what was brought, options that are refused.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
mixture=$fixtures/golden/qwen3_moe
golden_ids qwen3_moe "$scratch/ids"
forward() { # forward NAME [option...]: hidden states of a forward pass through one node, which then stops
  start_node "$1" "$mixture" all --kv-memory 1MiB --threads 2 --metrics 0 "${@:2}"
  wait_ready "$1"
  succeeds "$bin/swarm" forward --model "$mixture" --join "${address[$1]}" --ids-file "$scratch/ids" --out "$scratch/$1.safetensors"
  missed=$(metric "$1" expert_misses_total) bytes=$(metric "$1" expert_bytes_total)
  stop_node "$1"
  [ "$1" = resident ] || cmp "$scratch/resident.safetensors" "$scratch/$1.safetensors" || fail "$1: bits differ from those of resident experts"
}
forward resident
[ "$bytes" = 0 ] || fail "experts were brought where all are resident"
refuses 2 'give --expert-memory' "$bin/swarm-node" --model "$mixture" --blocks all --plan --device-map '*.experts=host' --expert-memory 1
least=$(grep -Eo 'take [0-9]+ bytes' "$scratch/run.err" | grep -Eo '[0-9]+')
for place in host disk; do
  forward $place --device-map "*.experts=$place" --expert-memory "$least" --offload-dir "$scratch/files"
  [ "$missed" -gt 0 ] && [ "$bytes" -gt 0 ] || fail "no expert was brought from $place: $missed, $bytes"
  grep -Eq "experts at a time, all (in host memory|on disk)" "$scratch/$place.err" || fail "the plan does not show slots"
done
[ "$(find "$scratch/files" -name '*.block' | wc -l)" = 4 ] || fail "there are not four files for four blocks"
forward pinned --device-map '*.experts=disk' --offload-dir "$scratch/files" --preload experts:0:4
refuses 2 'offload-dir' "$bin/swarm-node" --model "$mixture" --blocks all --listen 127.0.0.1:0 --device-map '*.experts=disk'
refuses 2 'do not exist' "$bin/swarm-node" --model "$mixture" --blocks all --plan --device-map '*.experts=host' --preload experts:0:1000
refuses 2 'have no experts' "$bin/swarm-node" --model "$fixtures/golden/llama" --blocks all --plan --device-map '*.experts=host'
