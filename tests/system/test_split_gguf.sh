#!/bin/bash
# A model in several GGUF files is one model: opened by any of its parts, by name and URL from a hub (only the needed bytes of the
# needed parts), shared between nodes; a part that is not there is named.
. "$(dirname "$0")/lib.sh"
[ -n "${SN_TEST_MODEL:-}" ] || skip "a model with many blocks: SN_TEST_MODEL"

hub=$scratch/hub
mkdir -p "$hub/org/parts/q4" "$hub/org/lacks" "$scratch/parts"
python3 "$here/../support/gguf_split.py" "$SN_TEST_MODEL" "$hub/org/parts/q4/Real" 4 --no-tensors-first || fail "no parts"
part=$hub/org/parts/q4/Real
say=(--prompt "The capital of France is" --max-tokens 8 --temperature 0)
succeeds "$bin/swarm" generate --model "$SN_TEST_MODEL" --local all "${say[@]}"
cp "$scratch/run.out" "$scratch/expected"
succeeds "$bin/swarm" inspect --model "$SN_TEST_MODEL" --json
id=$(query "$scratch/run.out" 'd["id"]')

# Any part opens all.
for n in 1 4; do
  succeeds "$bin/swarm" inspect --model "$part-0000$n-of-00004.gguf" --json
  [ "$(query "$scratch/run.out" 'd["id"], d["container"]')" = "('$id', 'GGUF v3, 4 files')" ] ||
    fail "part $n is another model: $(cat "$scratch/run.out")"
done
succeeds "$bin/swarm" generate --model "$part-00003-of-00004.gguf" --local all "${say[@]}"
cmp -s "$scratch/run.out" "$scratch/expected" || fail "the parts compute another text"

# A part that is not there, has another one's name, or is alone under a name of its own, is named.
cp "$part"-* "$scratch/parts/"
mv "$scratch/parts/Real-00003-of-00004.gguf" "$scratch/parts/third.gguf"
refuses 2 'Real-00003-of-00004.gguf is missing, part 3 of the 4' "$bin/swarm" inspect --model "$scratch/parts/Real-00001-of-00004.gguf"
refuses 2 'third.gguf is part 3 of 4 of a model: name it NAME-00003-of-00004.gguf' "$bin/swarm" inspect --model "$scratch/parts/third.gguf"
cp "$part-00002-of-00004.gguf" "$scratch/parts/Real-00003-of-00004.gguf"
refuses 2 'Real-00003-of-00004.gguf holds part 2 of 4' "$bin/swarm" inspect --model "$scratch/parts/Real-00001-of-00004.gguf"

# From a hub: the repository has one model; a node takes the bytes of its two blocks, a client those of the ends.
for n in 1 2 4; do ln "$part-0000$n-of-00004.gguf" "$hub/org/lacks/"; done
start_hub "$hub"
start_node a org/parts 10:12
wait_ready a
bytes=$(hub_count bytes)
[ "$bytes" -gt 4000000 ] && [ "$bytes" -lt 12000000 ] || fail "2 of 30 blocks took $bytes bytes"
stop_node a
start_node a org/parts:q4/Real-00002-of-00004.gguf 10:12 --share-weights off
wait_ready a
[ "$(hub_count bytes)" = "$bytes" ] || fail "by a part's name the bytes were fetched again"
start_node b "$part-00002-of-00004.gguf" 0:30 --join "${address[a]}" --share-weights 1GiB
wait_ready b
succeeds "$bin/swarm" generate --model org/parts --join "${address[a]}" "${say[@]}"
cmp -s "$scratch/run.out" "$scratch/expected" || fail "the fetched parts compute another text"
refuses 2 'org/lacks lacks Real-00003-of-00004.gguf, part 3 of 4' "$bin/swarm" inspect --model org/lacks
url=$HF_ENDPOINT/org/parts/resolve/1111111111111111111111111111111111111111/q4/Real-00003-of-00004.gguf
succeeds "$bin/swarm" generate --model "$url" --join "${address[a]}" "${say[@]}"
cmp -s "$scratch/run.out" "$scratch/expected" || fail "parts by URL compute another text"

# From nodes: the manifest has all parts; what was fetched is verified; the manifest made of any part is the same.
wait_until 60 grep -q 'weights shared' "$scratch/b.err"
succeeds "$bin/swarm" generate --cache "$scratch/cache-client" --join "${address[b]}" "${say[@]}"
cmp -s "$scratch/run.out" "$scratch/expected" || fail "parts from nodes compute another text"
succeeds "$bin/swarm" models --cache "$scratch/cache-client" verify
grep -q 'right, .* not here' "$scratch/run.out" || fail "nothing was verified: $(cat "$scratch/run.out")"
succeeds "$bin/swarm" models --cache "$scratch/cache-client" --json
name=$(query "$scratch/run.out" 'd["models"][0]["name"]')
succeeds "$bin/swarm" hash "$part-00004-of-00004.gguf" --out "$part-00001-of-00004.gguf.manifest"
[ "$(cat "$scratch/run.out")" = "$name" ] || fail "the manifest is $(cat "$scratch/run.out"), and the swarm's $name"
succeeds "$bin/swarm" hash "$part-00002-of-00004.gguf" --manifest "$part-00001-of-00004.gguf.manifest"
SWARM_CACHE=$scratch/cache-verified succeeds "$bin/swarm" generate --model org/parts --manifest "$part-00001-of-00004.gguf.manifest" --local all "${say[@]}"
cmp -s "$scratch/run.out" "$scratch/expected" || fail "parts by a manifest compute another text"
echo "ok"
