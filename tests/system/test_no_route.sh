#!/usr/bin/env bash
# When no node serves the blocks of a session, the sentence names the cause and what to do about it.
. "$(dirname "$0")/lib.sh"
llama=$fixtures/golden/llama
golden_ids llama "$scratch/ids" 8
start_node a "$llama" 0:3
start_node other "$fixtures/golden/qwen3" all
wait_ready a other
start_node b "$llama" 3:4 --join "${address[a]}"
start_node exact "$llama" all --kv-dtype f32
cp -r "$llama" "$scratch/damaged"
python3 - "$scratch/damaged/model.safetensors" <<'PY'
import json, struct, sys
with open(sys.argv[1], "r+b") as f:
    n = struct.unpack("<Q", f.read(8))[0]
    begin = json.loads(f.read(n))["model.layers.2.mlp.up_proj.weight"]["data_offsets"][0]
    f.seek(8 + n + begin)
    byte = f.read(1)[0]
    f.seek(8 + n + begin)
    f.write(bytes([byte ^ 1]))
PY
start_node damaged "$scratch/damaged" all
wait_ready b exact damaged
generate=("$bin/swarm" generate --model "$llama" --ids-file "$scratch/ids" --max-tokens 2 --timeout 20)
text=$("${generate[@]}" --join "${address[b]}" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["ids"])') || fail "the nodes do not work"

refuses 1 'blocks 3:4 .*1 denied.*: --deny leaves them out' "${generate[@]}" --join "${address[a]}" --deny b
refuses 1 'blocks 0:3 .*1 not among --only.*: --only leaves them out' "${generate[@]}" --join "${address[a]}" --only b
refuses 1 'blocks 0:4 .*1 another --kv-dtype.*: give --kv-dtype f32' "${generate[@]}" --join "${address[exact]}"
refuses 1 'blocks 0:4 .*: give --kv-dtype f32' "${generate[@]}" --join "${address[exact]}" --kv-dtype q8
succeeds "${generate[@]}" --join "${address[exact]}" --kv-dtype f32
refuses 1 'blocks 0:4 .*other weights.*: block 2 of node [0-9a-f]{8} has other weights; one of the files is damaged' \
  "${generate[@]}" --join "${address[damaged]}"
refuses 1 "blocks 0:4 .*1 another model.*: they serve another model, .*'swarm status'" "${generate[@]}" --join "${address[other]}"
refuses 2 'computes blocks 0:2 only .--local.: give --join HOST:PORT' "${generate[@]}" --local 0:2

# A replica wants a second node for the blocks; its lack does not end the text.
succeeds "${generate[@]}" --join "${address[a]}" --kv-replica --log-level debug --json
[ "$(query "$scratch/run.out" 'd["ids"]')" = "$text" ] || fail "the text is another one with --kv-replica"
grep -q 'no node for a KV replica.*needs another node with these blocks' "$scratch/run.err" || fail "the log says: $(cat "$scratch/run.err")"

# A joined node that is stopped for longer than a client waits for missing blocks.
start_node late "$llama" 3:4
wait_ready late
stop_node b
signal late STOP
start waiting "${generate[@]}" --join "${address[a]}" --join "${address[late]}" --timeout 60 --json
sleep 5
kill -0 "${pid[waiting]}" || fail "the client gave up: $(cat "$scratch/waiting.err")"
signal late CONT
wait_end waiting 60
[ $rc = 0 ] && [ "$(query "$scratch/waiting.out" 'd["ids"]')" = "$text" ] || fail "a node that answered late is not used: $(cat "$scratch/waiting.err")"
for name in a other exact damaged late; do stop_node "$name"; done
