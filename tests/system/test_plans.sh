#!/usr/bin/env bash
# What fits on a GPU, by --plan over the emulated CUDA devices and models without weights: a 7B model in Q4_K_M with 4,096 tokens
# on a card of 8 GB, with keys and values in 16 or 8 bits; the blocks of gpt-oss-120b on two cards of 48 GB, and not on one.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
emulate
make_model() { "$here/../bench/synthetic_model.py" "$scratch/$1.gguf" --sparse --shape "$1" --type "$2" --blocks "$3" || fail "$1 was not made"; }
plan() { succeeds "$bin/swarm-node" --model "$scratch/$1.gguf" --blocks all --plan "${@:2}"; }
make_model 7b Q4_K_M 32
make_model gpt-oss-120b MXFP4 36

export CUDA_STAND_IN_MEMORY=8000000000
token=$((2 * 32 * 32 * 128)) # numbers of a token: keys and values of 32 blocks with 32 heads of 128
plan 7b --device cuda:0 --kv-dtype f16 --kv-memory $((2 * token * 4096))
grep -q '^0:32 *cuda:0 *3\.[0-9] GiB *on it' "$scratch/run.out" || fail "f16: $(cat "$scratch/run.out")"
plan 7b --device cuda:0 --kv-dtype q8 --kv-memory $((token * 34 / 32 * 4096))
refuses 2 'do not fit: cuda:0 would need' "$bin/swarm-node" --model "$scratch/7b.gguf" --blocks all --plan --device cuda:0 --kv-memory $((4 * token * 4096))

export CUDA_STAND_IN_MEMORY=48000000000
plan gpt-oss-120b --device cuda:0,cuda:1 --kv-dtype f16 --kv-memory 2GiB
python3 - "$scratch/run.out" <<'PY' || fail "gpt-oss-120b: $(cat "$scratch/run.out")"
import re
import sys
rows = re.findall(r"^(\d+):(\d+) +(cuda:\d) +([\d.]+) GiB +on it", open(sys.argv[1]).read(), re.M)
assert [row[2] for row in rows] == ["cuda:0", "cuda:1"] and rows[0][0] == "0" and rows[0][1] == rows[1][0] and rows[1][1] == "36"
assert 57 < sum(float(row[3]) for row in rows) < 61  # the file has 58.3 GiB of blocks
PY
refuses 2 'do not fit' "$bin/swarm-node" --model "$scratch/gpt-oss-120b.gguf" --blocks all --plan --device cuda:0 --kv-memory 64MiB

# What rests in host memory has the limit of what the machine has, or of the process's control group.
if [ "$(awk '/^MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)" -lt 50 ]; then
  experts=("$bin/swarm-node" --model "$scratch/gpt-oss-120b.gguf" --blocks all --plan --kv-memory 64MiB --device cuda:0)
  refuses 2 'host memory has room for .* let blocks or experts rest on disk' "${experts[@]}" --device-map '*.experts=host'
  refuses 2 'host memory has room for' "${experts[@]}" --offload host --offload-all
  refuses 2 'a smaller KV cache, --offload disk, or more memory' "${experts[@]}"
  succeeds "${experts[@]}" --device-map '*.experts=disk' --offload-dir "$scratch/blocks"
  group=/sys/fs/cgroup/memory/$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)/plans.$$
  if mkdir "$group" 2>/dev/null; then
    echo 3000000000 >"$group/memory.limit_in_bytes"
    in_group=(bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group")
    refuses 2 'host memory has room for 2[.][0-9] GiB' "${in_group[@]}" "${experts[@]}" --device-map '*.experts=host'
    rmdir "$group" || fail "the control group is in use"
  fi
fi
