#!/usr/bin/env bash
# Files of every type that llama.cpp's own llama-quantize writes, with an importance matrix: each tensor has the numbers of llama.cpp's
# library, a node computes it, and the next token's logits are llama-server's but for its rounding. Runs where SN_LLAMA_BIN is a folder
# with llama-quantize, llama-server and their libraries.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
llama=${SN_LLAMA_BIN:-}
[ -x "$llama/llama-quantize" ] || skip "files of llama-quantize need SN_LLAMA_BIN, a folder of llama.cpp's programs"
[ -x "$bin/ggml_rows" ] || skip "ggml_rows is not built in $bin"
export LD_LIBRARY_PATH=$llama
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
ids=$scratch/ids
python3 -c 'import json; json.dump([1 + i * 37 % 250 for i in range(24)], open("'"$ids"'", "w"))'

# make NAME SHAPE: NAME.gguf in F32 and NAME.matrix.
make() {
  "$here/../bench/synthetic_model.py" "$scratch/$1.gguf" --type F32 --shape "$2" --blocks 1 || fail "no model was made"
  python3 "$here/quantised_files.py" imatrix "$bin/swarm" "$scratch/$1.gguf" "$scratch/$1.matrix" || fail "no importance matrix was made"
}
# quantize NAME TYPE OPTIONS...: of NAME.gguf to made.gguf.
quantize() {
  local name=$1 type=$2
  shift 2
  timeout -k 5 300 "$llama/llama-quantize" --imatrix "$scratch/$name.matrix" "$@" "$scratch/$name.gguf" "$scratch/made.gguf" "$type" 2 \
    >"$scratch/quantize.err" 2>&1 || fail "llama-quantize does not write $type $*"
}
# same_numbers TYPES: made.gguf has the numbers of llama.cpp, and each of the types.
same_numbers() {
  local type
  types=$(timeout 60 "$bin/ggml_rows" "$llama/libggml-base.so" "$scratch/made.gguf") || fail "$1: $types"
  for type in $1; do [[ " $types " = *" $type "* ]] || fail "no tensor is of type $type: $types"; done
}
answers() { python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)' "http://127.0.0.1:$port/health" 2>/dev/null; }
# same_text: a node computes the text of one process.
same_text() {
  local generate=("$bin/swarm" generate --model "$scratch/made.gguf" --ids-file "$ids" --ignore-eos --json --max-tokens 4) expected
  succeeds "${generate[@]}" --local all
  expected=$(query "$scratch/run.out" 'd["ids"]')
  start_node a "$scratch/made.gguf" all
  wait_ready a
  succeeds "${generate[@]}" --join "${address[a]}"
  [ "$(query "$scratch/run.out" 'd["ids"]')" = "$expected" ] || fail "$1: a node writes another text than one process"
  stop_node a
}
# near LABEL: prints how far the logits are from llama.cpp's.
near() {
  local off
  [ -x "$llama/llama-server" ] || { off=- && not_tested "logits of $1: no llama-server in $llama" && return; }
  succeeds "$bin/swarm" forward --model "$scratch/made.gguf" --local all --ids-file "$ids" --out "$scratch/out.safetensors" --force --kv-dtype f32
  start server "$llama/llama-server" --model "$scratch/made.gguf" --host 127.0.0.1 --port "$port" --threads 2 --ctx-size 64 --parallel 1 \
    --cache-type-k f32 --cache-type-v f32 --no-warmup --flash-attn off
  wait_until 60 answers
  off=$(timeout 60 python3 "$here/quantised_files.py" near "http://127.0.0.1:$port" "$scratch/out.safetensors" "$ids") || fail "$1: no logits"
  signal server TERM
  wait_end server 60
  echo "$1 ($types): $off"
  # Both round activations to 8 bits, in groups of 32 here and of 32 or 256 there.
  awk -v off="$off" 'BEGIN { exit !(off <= 0.05) }' || fail "$1: logits are $off of their spread off"
}
whole() { same_numbers "$2" && same_text "$1" && near "$1"; }

make dense tiny
make mixture tiny-mixture
timeout 20 "$llama/llama-quantize" --help >"$scratch/help"
for type in $(awk '$2 == "or" && $4 == ":" && !/alias/ { print $3 }' "$scratch/help"); do
  quantize dense "$type"
  whole "$type" ""
done
[ -n "${type:-}" ] || fail "llama-quantize lists no types"

quantize mixture MXFP4_MOE
whole "MXFP4_MOE of a mixture" MXFP4
# Files with a type for each matrix, as "dynamic" ones have them; NVFP4 is in no list of the program.
quantize dense Q4_K --tensor-type attn_q=nvfp4 --tensor-type attn_k=iq2_xs --tensor-type attn_v=q6_k --tensor-type attn_output=iq4_nl \
  --tensor-type ffn_gate=q5_0 --tensor-type ffn_up=iq3_s --tensor-type ffn_down=q8_0
whole "seven types in a block" "NVFP4 IQ2_XS Q6_K IQ4_NL Q5_0 IQ3_S Q8_0"
