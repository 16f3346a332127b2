#!/usr/bin/env bash
# Models of each type of GGUF below four bits and of NVFP4, and one that has all of them in turn: two nodes write what one process
# writes, `swarm inspect` names the type, and a node's plan takes the bytes of the file.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
python3 -c 'import json; json.dump([i * 37 % 320 for i in range(40)], open("'"$scratch"'/ids", "w"))'
model=$scratch/model.gguf
generate=("$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --ignore-eos --json --max-tokens 8)

for type in IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S TQ1_0 TQ2_0 NVFP4 Q1_0 Q2_0 mixed; do
  "$here/../bench/synthetic_model.py" "$model" --shape tiny --type $type --blocks 2 || fail "$type was not made"
  succeeds "$bin/swarm" inspect --model "$model"
  [ $type = mixed ] || grep -q "$type" "$scratch/run.out" || fail "inspect does not name $type: $(cat "$scratch/run.out")"
  succeeds "${generate[@]}" --local all
  expected=$(query "$scratch/run.out" 'd["ids"]')
  start_node a "$model" 0:1
  start_node b "$model" 1:2
  wait_ready a b
  succeeds "${generate[@]}" --join "${address[a]}" --join "${address[b]}"
  [ "$(query "$scratch/run.out" 'd["ids"]')" = "$expected" ] || fail "$type: two nodes write another text than one process"
  stop_node a
  stop_node b
done

weights=$((4 * (4 * 4096 * 4096 + 3 * 4096 * 11008))) # of four blocks of that shape
for type in "IQ1_S 50" "IQ2_XXS 66" "IQ3_S 110" "TQ1_0 54"; do
  read -r name bytes <<<"$type" # of 256 weights
  "$here/../bench/synthetic_model.py" "$scratch/big.gguf" --sparse --shape 7b --type "$name" --blocks 4 || fail "a large one of $name was not made"
  succeeds "$bin/swarm-node" --model "$scratch/big.gguf" --blocks all --plan --device cpu --kv-memory 64MiB
  awk -v file=$((weights / 256 * bytes / 1048576)) '/^0:4/ { exit !($3 >= file && $3 <= 1.05 * file && $4 == "MiB") }' "$scratch/run.out" ||
    fail "$name takes more than its file: $(cat "$scratch/run.out")"
done
