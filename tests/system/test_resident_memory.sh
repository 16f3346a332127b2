#!/usr/bin/env bash
# What weights take: the blocks of a node, planned and resident (/proc/PID/status), against the bytes of the file. Of two nodes, one of
# one block and one of four, so that what does not grow with the blocks drops out. Models of zeros, 2,048 wide.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model() { "$here/../bench/synthetic_model.py" "$scratch/$1.gguf" --sparse --type "$2" --shape "$3" --blocks "$4" || fail "$1 was not made"; }

# planned MODEL BLOCKS: bytes of weights that --plan counts.
planned() {
  succeeds "$bin/swarm-node" --model "$scratch/$1.gguf" --blocks "$2" --plan --kv-memory 16MiB
  awk -v b="$2" '$1 == b {split("B KiB MiB GiB", u); for (i in u) if (u[i] == $4) printf "%.0f\n", $3 * 1024 ^ (i - 1)}' "$scratch/run.out"
}
# resident MODEL BLOCKS: "RssAnon VmHWM" of a node that serves them, in bytes.
resident() {
  start_node a "$scratch/$1.gguf" "$2" --kv-memory 16MiB --threads 1 --swap-to off --share-weights off >&2
  wait_ready a >&2
  awk '/^RssAnon|^VmHWM/ {v[$1] = $2 * 1024} END {print v["RssAnon:"], v["VmHWM:"]}' "/proc/${pid[a]}/status"
  stop_node a >&2
}

for type in Q2_K Q3_K Q4_K Q5_K Q6_K Q8_0 IQ4_XS IQ2_XXS IQ3_S TQ1_0; do
  model m1 $type 1b 1
  model m4 $type 1b 4
  file=$(($(stat -c %s "$scratch/m4.gguf") - $(stat -c %s "$scratch/m1.gguf")))
  plan=$(($(planned m4 0:4) - $(planned m4 0:1)))
  read -r anon1 peak1 < <(resident m4 0:1)
  read -r anon4 peak4 < <(resident m4 0:4)
  anon=$((anon4 - anon1)) peak=$((peak4 - peak1))
  echo "$type: three blocks: file $file, planned $plan, resident $anon, at most $peak"
  slack=$((2 << 20)) # pages, and buffers that other tests of the process touch or not
  [ $plan -ge $((file * 98 / 100)) ] && [ $plan -le $((file * 105 / 100)) ] || fail "$type: $plan bytes are planned for $file of the file"
  [ $anon -ge $((file * 9 / 10)) ] && [ $anon -le $((file * 105 / 100 + slack)) ] || fail "$type: $anon bytes are resident for $file of the file"
  [ $peak -le $((file * 110 / 100 + slack)) ] || fail "$type: loading took $peak bytes for $file of the file"
done

model big Q2_K 70b 80
file=$(($(stat -c %s "$scratch/big.gguf") * 40 / 80)) # with half of embedding and head
plan=$(planned big 0:40)
[ "$plan" -gt $((file * 90 / 100)) ] && [ "$plan" -lt $((file * 103 / 100)) ] || fail "half of a model of 70B in Q2_K: $plan bytes are planned, $file of the file"
