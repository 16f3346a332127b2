#!/usr/bin/env bash
# The bits that the programs compute today are those of the list tests/fixtures/recorded_bits.sha256: hidden states after every
# block, logits and greedy ids of each golden family and GGUF file, with the default kernels, in plain C and with SN_TEST_ISAS; with a real model
# (SN_TEST_MODEL) also its hidden states and its greedy and sampled text. A changed line means that every machine would compute
# other bits than before: nodes of both versions could not audit each other. Where that is meant, write the list anew with
#     RECORD=1 SN_TEST_MODEL=MODEL tests/system/test_recorded_bits.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
list=$fixtures/recorded_bits.sha256

# hash_tensors FILE ITEM: a line "SHA-256  ITEM/NAME:TYPE:SHAPE" for each tensor of a safetensors file.
hash_tensors() {
  python3 - "$1" "$2" <<'END'
import hashlib, json, struct, sys
with open(sys.argv[1], "rb") as f:
    header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    data = f.read()
header.pop("__metadata__", None)
for name, t in header.items():
    print(hashlib.sha256(data[slice(*t["data_offsets"])]).hexdigest(), "",
          f"{sys.argv[2]}/{name}:{t['dtype']}:{'x'.join(map(str, t['shape']))}")
END
}
# hash_json FILE KEY ITEM: the same for one value of a JSON answer.
hash_json() {
  python3 - "$@" <<'END'
import hashlib, json, sys
v = json.load(open(sys.argv[1]))[sys.argv[2]]
print(hashlib.sha256(v.encode() if isinstance(v, str) else json.dumps(v, separators=(",", ":")).encode()).hexdigest(), "", sys.argv[3])
END
}

# record ITEM MODEL IDS ISA...: hidden states and logits with keys and values as float32, then as they are kept by default; with these
# each further instruction set must give the same files (test_bits compares instruction sets with float32).
record() {
  local item=$1 model=$2 ids=$3 dtype isa
  shift 3
  for dtype in f32 f16; do
    forward=("$bin/swarm" forward --model "$model" --local all --ids-file "$ids" --force --every-block)
    [ $dtype = f16 ] || forward+=(--kv-dtype $dtype)
    succeeds "${forward[@]}" --out "$scratch/out"
    hash_tensors "$scratch/out" "$item/forward$([ $dtype = f32 ] || echo -$dtype)"
    [ $dtype = f16 ] || continue
    for isa; do
      succeeds "${forward[@]}" --out "$scratch/isa" --isa "$isa"
      cmp -s "$scratch/out" "$scratch/isa" || fail "$item: --isa $isa gives other bits than the default"
    done
  done
}
record_text() { # ITEM OPTION...
  local item=$1
  shift
  local generate=("$bin/swarm" generate --model "$SN_TEST_MODEL" --local all --prompt 'Once upon a time' --max-tokens 64 --json "$@")
  for dtype in f32 f16; do
    succeeds "${generate[@]}" $([ $dtype = f16 ] || echo --kv-dtype $dtype)
    hash_json "$scratch/run.out" ids "$item-ids$([ $dtype = f32 ] || echo -$dtype)"
    hash_json "$scratch/run.out" text "$item-text$([ $dtype = f32 ] || echo -$dtype)"
  done
}

for golden in "$fixtures"/golden/*/; do
  name=$(basename "$golden")
  golden_ids "$name" "$scratch/ids"
  for model in "golden/$name" "gguf/$name.gguf"; do
    [ -e "$fixtures/$model" ] || continue
    record "${model%.gguf}" "$fixtures/$model" "$scratch/ids" c ${SN_TEST_ISAS-}
    succeeds "$bin/swarm" generate --model "$fixtures/$model" --local all --ids-file "$scratch/ids" --max-tokens 16 --json --kv-dtype f32
    hash_json "$scratch/run.out" ids "${model%.gguf}/generate-ids"
  done
done >"$scratch/bits"
if [ -n "${SN_TEST_MODEL:-}" ]; then
  echo '[504, 260, 8405, 282, 4649, 314, 7042, 28, 665, 357, 506, 411, 28, 284, 335, 253, 1165]' >"$scratch/ids"
  { record real "$SN_TEST_MODEL" "$scratch/ids"; record_text real/greedy; record_text real/sampled --seed 7 --temperature 0.8; } >>"$scratch/bits"
elif [ -z "${SN_TEST_MODEL+left out}" ]; then
  not_tested "bits of the real model (SN_TEST_MODEL names none)"
fi
sort -k2 -o "$scratch/bits" "$scratch/bits"

if [ -n "${RECORD:-}" ]; then
  cp "$scratch/bits" "$list"
  echo "$list has $(wc -l <"$list") lines now"
else
  [ -n "${SN_TEST_MODEL:-}" ] && cp "$list" "$scratch/expected" || grep -v ' real/' "$list" >"$scratch/expected"
  diff "$scratch/expected" "$scratch/bits" >"$scratch/difference" || fail "other bits than recorded: $(head -5 "$scratch/difference")"
fi
