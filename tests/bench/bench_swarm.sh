#!/usr/bin/env bash
# Speed over real processes on this machine: one program, three nodes, and blocks that stream. Prints the figures of every
# round; the least ms and the most tok/s of all rounds are what the machine can do beside its other work.
#
#     SN_BUILD=build tests/bench/bench_swarm.sh MODEL.gguf [ROUNDS]
#
# For machines without an accelerator: where there is one, "host" and "disk" would stream to it.
. "$(dirname "${BASH_SOURCE[0]}")/../system/lib.sh"
model=$1 rounds=${2:-3}
blocks=$("$bin/swarm" inspect "$model" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["hparams"]["n_blocks"])')
a=$((blocks / 3)) b=$((2 * blocks / 3))
echo '[1]' >"$scratch/one"
python3 -c 'print([i * 37 % 10000 + 100 for i in range(256)])' >"$scratch/many"

# generate NAME IDS TOKENS [option...]: figures of one run
generate() {
  local name=$1 ids=$2 tokens=$3
  shift 3
  succeeds "$bin/swarm" generate --model "$model" --ids-file "$scratch/$ids" --max-tokens "$tokens" --ignore-end --json "$@"
  printf '%-22s ' "$name"
  query "$scratch/run.out" '"prompt %.0f tok/s, decode %.1f tok/s, " % (d["timings"]["prefill_tok_s"],
    d["timings"]["decode_tok_s"]) + ", ".join("%s: %.2f ms/step" % (h["blocks"], h["compute_ms_per_step"])
    for h in d["timings"]["hops"])'
}
whole() { start_node "$1" "$model" all --threads 2 --device cpu "${@:2}"; wait_ready "$1"; }

start_node a "$model" "0:$a" --threads 2 --device cpu
wait_ready a
start_node b "$model" "$a:$b" --threads 2 --device cpu --join "${address[a]}"
start_node c "$model" "$b:$blocks" --threads 2 --device cpu --join "${address[a]}"
wait_ready b c
whole resident
whole host --device-map "0:$blocks=host"
whole disk --device-map "0:$blocks=disk" --offload-dir "$scratch/files"
for ((round = 0; round < rounds; round++)); do
  for threads in 1 2; do generate "local, $threads threads" many 17 --local all --threads $threads; done
  generate "three nodes" many 17 --join "${address[a]}" --threads 2
  for how in resident host disk; do
    generate "$how, decode" one 17 --join "${address[$how]}" --threads 2
    generate "$how, prompt of 256" many 1 --join "${address[$how]}" --threads 2
  done
  [ ! -x "$bin/tests/bench_copy" ] || "$bin/tests/bench_copy" "$scratch"/files/*.block
done
