#!/usr/bin/env bash
# Options about devices: the list of devices, which block runs where, what is refused; and that a forward pass has the same bits
# wherever the blocks are kept. For machines without an accelerator.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
llama=$fixtures/golden/llama
node=$bin/swarm-node
golden_ids llama "$scratch/ids"
small() { refuses 2 "$1" "$node" --model "$llama" --listen 127.0.0.1:0 --kv-memory 1MiB --blocks all "${@:2}"; }

# The list of devices.
succeeds "$node" --list-devices
grep -Eq '^cpu +.* of .*iB free, (c|avx2|avx512|amx), [0-9]+ threads?$' "$scratch/run.out" || fail "--list-devices does not show the CPU"
cuda=no
grep -q '^cuda:0 ' "$scratch/run.out" && cuda=yes

# --plan prints a table; it does not load blocks and does not serve.
plan() { succeeds "$node" --model "$llama" --blocks all --kv-memory 1MiB --plan "$@"; }
says() { grep -Eq "$1" "$scratch/run.out" || fail "the plan has no line '$1': $(cat "$scratch/run.out")"; }
plan --device cpu
says '^0:4 +cpu .* on it$'
says '^cpu .* of '
! grep -q '^ready' "$scratch/run.out" || fail "--plan serves"
mkdir -m 700 "$scratch/plan"
plan --device-map 0:1=cpu,1:2=host,2:4=disk --preload 3:4 --offload-dir "$scratch/plan"
says '^0:1 +cpu .* on it$'
says '^1:2 +cpu .* in host memory, streamed$'
says '^2:3 +cpu .* on disk, streamed$'
says '^3:4 +cpu .* on disk, preloaded$'
[ -z "$(ls "$scratch/plan")" ] || fail "--plan wrote files"
plan --device cpu --offload host --offload-all --preload 0:1
says '^0:1 +cpu .* on it, preloaded$'
says '^1:4 +cpu .* in host memory, streamed$'

# The same forward pass, wherever the blocks are kept.
forward() { # forward NAME OUT [option...]: a forward pass through one node with these options
  local name=$1 out=$2
  shift 2
  start_node "$name" "$llama" all "$@"
  wait_ready "$name"
  succeeds "$bin/swarm" forward --model "$llama" --join "${address[$name]}" --ids-file "$scratch/ids" --out "$out"
  stop_node "$name"
}
same() { # same NAME [option...]
  forward "$1" "$scratch/$1.out.safetensors" "${@:2}"
  cmp "$scratch/resident.safetensors" "$scratch/$1.out.safetensors" || fail "$1: bits differ from those of resident blocks"
}
forward resident "$scratch/resident.safetensors" --device cpu
grep -q '^ready:.* blocks=0:4/4 ' "$scratch/resident.out" || fail "resident blocks: $(cat "$scratch/resident.out")"
same host --device-map 0:1=cpu,1:4=host
same disk --device-map 0:1=cpu,1:4=disk --offload-dir "$scratch/files"
[ "$(find "$scratch/files" -name '*.block' | wc -l)" = 3 ] || fail "there are not three files for three blocks: $(ls "$scratch/files")"
same mixed --device-map 0:2=host,2:3=cpu,3:4=disk --offload-dir "$scratch/files"
same preloaded --device-map 0:1=cpu,1:2=host,2:4=disk --offload-dir "$scratch/files" --preload 1:3
same all_preloaded --device-map 0:1=cpu,1:2=host,2:4=disk --offload-dir "$scratch/files" --preload all
grep -q 'on disk, preloaded' "$scratch/all_preloaded.err" || fail "the table was not printed before loading"

# A damaged file is rebuilt.
file=$(find "$scratch/files" -name '*.block' | head -n 1)
printf 'X' | dd of="$file" bs=1 seek=3000 conv=notrunc status=none
cp "$file" "$scratch/damaged"
same repaired --device-map 0:1=cpu,1:4=disk --offload-dir "$scratch/files"
! cmp -s "$file" "$scratch/damaged" || fail "a damaged file was not rebuilt"

# Little memory: blocks that do not fit are streamed, or refused. Each thread takes memory, so their number is given.
plan --device cpu --threads 1 --device-memory cpu=3300KiB --offload host
says ' in host memory, streamed$'
same little --kv-memory 1MiB --device cpu --threads 1 --device-memory cpu=3300KiB --offload host
grep -q 'in host memory, streamed' "$scratch/little.err" || fail "nothing was streamed"
small 'too little|missing|more' --device cpu --device-memory cpu=1MiB

# Explicit maps are followed, or refused with the reason.
small 'blocks 1:2 are not covered' --device-map 0:1=cpu,2:4=cpu
small 'blocks 3:4 are not covered' --device-map 0:3=cpu
small 'block 2 is covered twice' --device-map 0:3=cpu,2:4=cpu
small '3:5' --device-map 0:3=cpu,3:5=cpu
small 'no device "cuda:99" here: there is cpu' --device-map 0:3=cuda:99,3:4=cpu
small 'tpu' --device-map 0:4=tpu
small 'cpu would need [0-9]+ bytes more' --device-map 0:4=cpu --device-memory cpu=1MiB
small 'offload-dir' --device-map 0:4=disk
small 'offload' --offload tape
small 'give --offload host or disk' --offload-all
small 'preload.* 3:5' --preload 3:5
small 'DEVICE=SIZE' --device-memory 1GiB

# As many blocks as fit in addition to the KV cache.
start_node fitting "$llama" auto --kv-memory 1MiB --device cpu --threads 1 --device-memory cpu=3300KiB
wait_ready fitting
served=$(sed -n 's/.* blocks=0:\([0-9]*\)\/4 .*/\1/p' "$scratch/fitting.out")
[ -n "$served" ] && [ "$served" -ge 1 ] && [ "$served" -lt 4 ] || fail "served with too little memory: $(cat "$scratch/fitting.out")"
stop_node fitting
start_node rest "$llama" "$served:auto" --device cpu
wait_ready rest
grep -q " blocks=$served:4/4 " "$scratch/rest.out" || fail "the rest: $(cat "$scratch/rest.out")"
stop_node rest
refuses 2 'not even one block fits' "$node" --model "$llama" --blocks auto --device cpu --device-memory cpu=8KiB
refuses 2 'too little for any block' "$node" --model "$llama" --blocks auto --device cpu --device-memory cpu=1KiB

# Absent accelerators: a named one is refused, auto uses the present devices.
small 'no device "cuda:99" here: there is cpu' --device cuda:99
[ $cuda = yes ] || small 'no device "cuda:0" here: there is cpu' --device cuda:0
[ $cuda = yes ] || same automatic --device auto
