#!/bin/bash
# Models by name: a node fetches what it needs and nothing else, from a hub that works and from one that fails in many ways; what
# it has fetched it does not fetch again; the token stays with the hub; what is not there is never computed with.
. "$(dirname "$0")/lib.sh"

hub=$scratch/hub
mkdir -p "$hub/org/folder" "$hub/org/two" "$hub/closed/one"
cp "$fixtures"/golden/llama/{config.json,model.safetensors} "$hub/org/folder/" || fail "no fixture"
[ -n "${SN_TEST_MODEL:-}" ] || skip "a model with many blocks: SN_TEST_MODEL"
mkdir "$hub/org/real"
cp "$SN_TEST_MODEL" "$hub/org/real/model.gguf"
for n in a b; do cp "$fixtures"/golden/llama/config.json "$hub/org/two/$n.gguf"; done
cp "$fixtures"/golden/llama/config.json "$hub/closed/one/a.gguf"

# 4 of 80 blocks: 5 % of the file, and its header. (A folder of zeros: what counts is bytes.)
mkdir "$hub/org/large"
python3 - "$hub/org/folder" "$hub/org/large" <<'PY' || fail "no large model"
import json, re, struct, sys
config = json.load(open(sys.argv[1] + "/config.json")) | {"num_hidden_layers": 80, "intermediate_size": 4096}
json.dump(config, open(sys.argv[2] + "/config.json", "w"))
with open(sys.argv[1] + "/model.safetensors", "rb") as f:
    header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
header.pop("__metadata__", None)
tensors = {n: t for n, t in header.items() if ".layers." not in n}
for n, t in header.items():
    if ".layers.0." in n:
        t["shape"] = [4096 if s == 96 else s for s in t["shape"]]
        tensors |= {n.replace(".0.", f".{b}.", 1): dict(t) for b in range(80)}
at = 0
for name in sorted(tensors, key=lambda n: [int(p) if p.isdigit() else 0 for p in n.split(".")]):
    t = tensors[name]
    size = 4
    for s in t["shape"]:
        size *= s
    t["data_offsets"], at = [at, at + size], at + size
text = json.dumps(tensors).encode()
with open(sys.argv[2] + "/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    f.truncate(8 + len(text) + at)
PY
size=$(stat -c %s "$hub/org/large/model.safetensors")
start_hub "$hub"
start_node a org/large 40:44
wait_ready a
bytes=$(hub_count bytes)
[ "$bytes" -gt $((size / 20)) ] && [ "$bytes" -lt $((size * 56 / 1000)) ] || fail "4 of 80 blocks took $bytes bytes of $size"
echo "4 of 80 blocks: $bytes of $size bytes"
stop_node a
kill_node hub

# 2 of 30 blocks and the header, of 98 MB. The second time, nothing.
start_hub "$hub"
start_node a org/real 10:12
wait_ready a
bytes=$(hub_count bytes)
[ "$bytes" -lt 12000000 ] || fail "2 of 30 blocks took $bytes bytes of $(stat -c %s "$SN_TEST_MODEL")"
[ "$bytes" -gt 4000000 ] || fail "$bytes bytes cannot be two blocks"
[ "$(hub_count token)" = 0 ] || fail "the token went to another host"
[ "$(hub_count trees)" = 1 ] || fail "the hub was asked $(hub_count trees) times what the repository holds"
stop_node a
start_node a org/real 10:12
wait_ready a
[ "$(hub_count bytes)" = "$bytes" ] || fail "what had been fetched was fetched again"

# With the blocks that others have from a file, the text is that of the file.
start_node b "$SN_TEST_MODEL" 0:10 --join "${address[a]}"
start_node c "$SN_TEST_MODEL" 12:30 --join "${address[a]}"
wait_ready b c
say=(--prompt "The capital of France is" --max-tokens 8 --temperature 0)
before=$(hub_count bytes)
succeeds "$bin/swarm" generate --model org/real --join "${address[a]}" "${say[@]}"
bytes=$(($(hub_count bytes) - before))
[ "$bytes" -gt 10000000 ] && [ "$bytes" -lt 60000000 ] || fail "embedding and LM head took $bytes bytes"
succeeds "$bin/swarm" tokenize --model org/real --text hello
succeeds "$bin/swarm" generate --model org/real --join "${address[a]}" "${say[@]}"
[ $(($(hub_count bytes) - before)) = "$bytes" ] || fail "the client fetched twice"
cp "$scratch/run.out" "$scratch/together"
succeeds "$bin/swarm" generate --model "$SN_TEST_MODEL" --local all "${say[@]}"
cmp -s "$scratch/run.out" "$scratch/together" || fail "the fetched blocks compute another text"
refuses 2 'fetched in part only' "$bin/swarm" generate --model "$(echo "$SWARM_CACHE"/models/org--real/*/model.gguf)" --local all "${say[@]}"
for n in a b c; do stop_node $n; done

# The path in the cache is no whole model, and says so. A repository that changes under way keeps its version.
part=$(echo "$SWARM_CACHE"/models/org--real/*/model.gguf)
refuses 2 'fetched in part only' "$bin/swarm-node" --model "$part" --blocks 3:4 --listen 127.0.0.1:0
refuses 2 'has 2 models.*a.gguf (.*, fits here).*b.gguf (.*, fits here)' "$bin/swarm-node" --model org/two --blocks all
refuses 2 'does not exist' "$bin/swarm-node" --model org/none --blocks all
refuses 2 'no file x.gguf' "$bin/swarm-node" --model org/real:x.gguf --blocks all
HF_TOKEN=wrong refuses 2 'give a token' "$bin/swarm-node" --model closed/one --blocks all
mkdir -p "$HF_HOME" && echo secret >"$HF_HOME/token" # as the hub's own tools leave it
(unset HF_TOKEN; refuses 2 'closed/one' "$bin/swarm-node" --model closed/one --blocks all) || exit 1
grep -q 'give a token' "$scratch/run.err" && fail "the token in \$HF_HOME is not used"
kill_node hub

# A hub that cannot be reached: what is there is served; what is not is missed in a sentence.
start_node a org/real 10:12
wait_ready a
stop_node a
refuses 1 'block 13.*cannot be fetched' "$bin/swarm-node" --model org/real --blocks 13:14 --listen 127.0.0.1:0

# A hub that fails in many ways gives the same blocks.
rm -rf "$SWARM_CACHE"
start_hub "$hub" --faults
start_node a org/real 20:22
wait_ready a
part=$(echo "$SWARM_CACHE"/models/org--real/*/model.gguf)
python3 - "$part" "$SN_TEST_MODEL" <<'PY' || fail "the hub's faults came through"
import sys
part, whole = (open(p, "rb") for p in sys.argv[1:])
ranges = [tuple(map(int, l.split())) for l in open(sys.argv[1] + ".ranges").readlines()[1:]]
for begin, end in ranges:
    part.seek(begin), whole.seek(begin)
    assert part.read(end - begin) == whole.read(end - begin), (begin, end)
assert sum(end - begin for begin, end in ranges) > 4000000
PY
stop_node a
start_node a org/folder 0:1
wait_ready a
stop_node a
echo "ok"
