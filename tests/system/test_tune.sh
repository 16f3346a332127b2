#!/usr/bin/env bash
# swarm tune over three processes with a real model: when it is killed and resumed, and when a node is killed within a step, it
# writes the same files as an uninterrupted run; and it refuses invalid combinations.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ -n "${SN_TEST_MODEL:-}" ] || skip "training needs SN_TEST_MODEL"
model=$SN_TEST_MODEL
for i in 1 2 3 4 5 6 7; do
  echo "{\"prompt\": \"The colour number $i is\", \"completion\": \" number $i of all the colours, and no other one.\"}"
done >"$scratch/data.jsonl"
same=(--data "$scratch/data.jsonl" --method lora --rank 4 --targets q,down --seq 20 --batch 1 --accumulate 3 --seed 5)
tune=("$bin/swarm" tune --model "$model" "${same[@]}" --steps 6 --save-every 1)

# wait_checkpoint FOLDER STEP: waits for a checkpoint of this step or a later one.
wait_checkpoint() {
  local until=$(($(now_ms) + 60000)) newest
  while :; do
    newest=$(ls "$1" 2>/dev/null | sed -n 's/^step-\([0-9]*\)$/\1/p' | sort -n | tail -1)
    [ "${newest:-0}" -ge "$2" ] && return
    kill -0 "${pid[tune]}" 2>/dev/null || fail "training ended early"
    [ "$(now_ms)" -lt "$until" ] || fail "no checkpoint of step $2 within a minute"
    sleep 0.01
  done
}
equal() { diff -r "$scratch/whole" "$1" >"$scratch/diff.err" || fail "$1 differs from an uninterrupted run"; }

start_node a "$model" 0:10
wait_ready a
start_node b "$model" 10:20 --join "${address[a]}"
start_node c "$model" 20:30 --join "${address[a]}"
wait_ready b c
succeeds "${tune[@]}" --join "${address[a]}" --out "$scratch/whole" --json
query "$scratch/run.out" 'd["steps"] == 6 and d["loss"] > 0' | grep -qx True || fail "the report is wrong"
[ "$(wc -l <"$scratch/whole/loss.csv")" = 7 ] || fail "loss.csv does not have one line per step"
python3 - "$scratch/whole/loss.csv" <<'END' || fail "nothing was learned"
import sys
losses = [float(line.split(",")[1]) for line in open(sys.argv[1]).readlines()[1:]]
assert min(losses[3:]) < losses[0]
END

# Killed while it trains, then resumed.
start tune "${tune[@]}" --join "${address[a]}" --out "$scratch/killed"
wait_checkpoint "$scratch/killed" 2
kill_node tune
[ ! -e "$scratch/killed/step-6" ] || fail "it ended before it was killed"
succeeds "${tune[@]}" --join "${address[a]}" --resume "$scratch/killed"
grep -q 'resuming at step [1-5]$' "$scratch/run.err" || fail "it does not say at which step it resumes"
equal "$scratch/killed"

# Interrupted within a step, then resumed.
start tune "${tune[@]}" --join "${address[a]}" --out "$scratch/interrupted"
wait_checkpoint "$scratch/interrupted" 1
signal tune INT
wait_end tune 60
[ $rc = 130 ] || fail "after Ctrl-C it ended with $rc"
succeeds "${tune[@]}" --join "${address[a]}" --resume "$scratch/interrupted"
equal "$scratch/interrupted"

# A run that resumes takes its options, and the place of its data, from the checkpoint; more steps extend it. With a constant
# learning rate it has the bits of one run of all steps.
extend=("$bin/swarm" tune --model "$model" --local all)
succeeds "${extend[@]}" "${same[@]}" --schedule constant --steps 2 --out "$scratch/extended"
succeeds "${extend[@]}" --resume "$scratch/extended" --steps 4
succeeds "${extend[@]}" "${same[@]}" --schedule constant --steps 4 --out "$scratch/at-once"
for file in adapter_model.safetensors loss.csv; do
  cmp "$scratch/extended/$file" "$scratch/at-once/$file" || fail "an extended run differs from one of all steps: $file"
done
start extended "${extend[@]}" --resume "$scratch/extended" --steps 4000
until grep -q 'resuming at step 4$' "$scratch/extended.err"; do kill -0 "${pid[extended]}" || fail "it does not resume"; sleep 0.05; done
signal extended INT
wait_end extended 60
[ $rc = 130 ] && grep -q "interrupted after step [0-9]* of 4000; swarm tune --resume $scratch/extended continues" "$scratch/extended.err" ||
  fail "an interrupted run does not say how to go on: $(cat "$scratch/extended.err")"

# A node is killed during a step, and another one replaces it. The program is stopped until the other one is ready.
start tune "${tune[@]}" --join "${address[a]}" --out "$scratch/lost"
wait_checkpoint "$scratch/lost" 2
signal tune STOP
start_node d "$model" 10:20 --join "${address[a]}"
wait_ready d
kill_node b
signal tune CONT
wait_end tune 180
[ $rc = 0 ] || fail "after the loss of a node it ended with $rc"
grep -q 'node failed' "$scratch/tune.err" || fail "the node that was killed was not in use"
equal "$scratch/lost"

# The adapter changes the logits, which are the same over nodes as in one process.
echo "[504, 4050, 1230, 28, 260, 1187]" >"$scratch/ids"
forward=("$bin/swarm" forward --model "$model" --ids-file "$scratch/ids")
succeeds "${forward[@]}" --local all --out "$scratch/plain"
succeeds "${forward[@]}" --local all --adapter "$scratch/whole" --out "$scratch/here"
succeeds "${forward[@]}" --join "${address[a]}" --adapter "$scratch/whole" --out "$scratch/there"
python3 - "$scratch/plain" "$scratch/here" "$scratch/there" <<'END' || fail "the logits of forward --adapter over nodes differ, or the adapter does not change them"
import json, struct, sys
def logits(path):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8:8 + size])["logits"]["data_offsets"]
    return data[8 + size + begin:8 + size + end]
plain, here, there = map(logits, sys.argv[1:])
assert here == there and here != plain
END

# Also in a chat of two turns.
printf 'The colour number 3 is\nThe colour number 5 is\n' >"$scratch/turns"
chat() {
  timeout -k 2 60 "$bin/swarm" chat --model "$model" --max-tokens 12 --temperature 0 "${@:2}" <"$scratch/turns" >"$scratch/$1" 2>"$scratch/chat.err" ||
    fail "chat ${*:2} ended with $?"
}
chat chat.plain --local all
chat chat.here --local all --adapter "$scratch/whole"
chat chat.there --join "${address[a]}" --adapter "$scratch/whole"
cmp "$scratch/chat.here" "$scratch/chat.there" || fail "a chat with an adapter differs over nodes"
cmp -s "$scratch/chat.here" "$scratch/chat.plain" && fail "an adapter changes nothing in a chat"

# Invalid combinations.
here=("${tune[@]}" --local all)
refuses 2 'rank conflicts with the checkpoint, which has 4' "${here[@]}" --resume "$scratch/whole" --rank 8
refuses 2 'method conflicts with the checkpoint, which has "lora"' "${here[@]}" --resume "$scratch/whole" --method prompt
refuses 2 'steps conflicts with the checkpoint, which has 6' "${here[@]}" --resume "$scratch/whole" --steps 5
refuses 2 'out: the folder .* is not empty: --resume continues' "${here[@]}" --model /nowhere --out "$scratch/whole"
refuses 2 'data FILE is missing' "$bin/swarm" tune --model "$model" --local all --out "$scratch/none"
refuses 2 'either --steps or --epochs' "${here[@]}" --out "$scratch/none" --epochs 2
refuses 2 'holds no checkpoint' "${here[@]}" --resume "$scratch/none"
refuses 2 'targets q,x: name them' "${here[@]}" --out "$scratch/none" --targets q,x
head -3 "$scratch/data.jsonl" >"$scratch/other.jsonl"
refuses 2 'data differs from the data of the checkpoint' "${here[@]}" --resume "$scratch/whole" --data "$scratch/other.jsonl"

cp "$model" "$scratch/other.gguf"
cp "$model" "$scratch/changed.gguf"
python3 - "$scratch/other.gguf" "$scratch/killed/step-6/state.safetensors" "$scratch/changed.gguf" <<'END'
import struct, sys
def flip(file, at, bit):
    file.seek(at)
    byte = file.read(1)[0]
    file.seek(at)
    file.write(bytes([byte ^ bit]))
with open(sys.argv[1], "r+b") as f:  # another rope base
    key = b"llama.rope.freq_base"
    flip(f, f.read(1 << 20).index(key) + len(key) + 6, 16)
with open(sys.argv[2], "r+b") as f:
    flip(f, f.seek(0, 2) - 9, 1)
with open(sys.argv[3], "r+b") as f:  # the same shapes, another output norm
    head = f.read(1 << 23)
    names = [b"token_embd.weight", b"output_norm.weight", b"blk.0.attn_norm.weight"]
    at, where = min(head.index(struct.pack("<Q", len(n)) + n) for n in names), None
    for _ in range(struct.unpack_from("<Q", head, 8)[0]):  # name, dimensions, type, offset
        size = struct.unpack_from("<Q", head, at)[0]
        name, n_dims = head[at + 8:at + 8 + size], struct.unpack_from("<I", head, at + 8 + size)[0]
        at += 8 + size + 4 + 8 * n_dims + 12
        if name == b"output_norm.weight":
            where = struct.unpack_from("<Q", head, at - 8)[0]
    flip(f, (at + 31) // 32 * 32 + where, 1)
END
refuses 2 'is of another model' "${here[@]}" --model "$scratch/other.gguf" --resume "$scratch/whole"
refuses 2 'LM head of this model differ' "${here[@]}" --model "$scratch/changed.gguf" --resume "$scratch/whole"
refuses 2 'was trained for other weights' "${forward[@]}" --model "$scratch/changed.gguf" --local all --adapter "$scratch/whole" --out "$scratch/x"
# Invalid options and damaged files are reported before the model is opened.
refuses 2 'rank conflicts with the checkpoint, which has 4' "${here[@]}" --model /nowhere --resume "$scratch/whole" --rank 8
refuses 2 'state.safetensors is damaged' "${here[@]}" --model /nowhere --resume "$scratch/killed"
refuses 2 'state.safetensors is damaged' "${here[@]}" --resume "$scratch/killed"
sed -i 's/"position": [0-9]*/"position": 0/' "$scratch/lost/step-6/checkpoint.json"
refuses 2 'checkpoint.json is damaged' "${here[@]}" --resume "$scratch/lost"
rm "$scratch/lost/step-6/adapter_model.safetensors"
refuses 2 'adapter_model.safetensors' "${here[@]}" --resume "$scratch/lost"
