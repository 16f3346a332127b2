#!/bin/bash
# Volunteers without a file: they know one address, choose the model, fetch it from the seed and from each other, and serve; one
# that gives other bytes is found out; the seed leaves; a client without a file chats.
. "$(dirname "$0")/lib.sh"
[ -n "${SN_TEST_MODEL:-}" ] || skip "a model with many blocks: SN_TEST_MODEL"

# volunteer NAME [option...]: a node that is given an address and nothing else; its cache is its own.
volunteer() {
  local name=$1
  shift
  start "$name" "$bin/swarm-node" --name "$name" --threads 1 --listen 127.0.0.1:0 --kv-memory 64MiB \
    --cache "$scratch/cache-$name" --share-weights 1GiB "$@"
}
say=(--prompt "The capital of France is" --max-tokens 8 --temperature 0)
succeeds "$bin/swarm" generate --model "$SN_TEST_MODEL" --local all "${say[@]}"
cp "$scratch/run.out" "$scratch/expected"

start_node seed "$SN_TEST_MODEL" all --share-weights 1GiB
wait_ready seed
volunteer a --join "${address[seed]}"
wait_ready a
grep -q "^chose model 'Smollm2 [^']*' (--model-id [0-9a-f]*), the only one that is shared here: its least served block has [12] node" "$scratch/a.out" ||
  fail "a does not say what it chose and why: $(head -1 "$scratch/a.out")"

# A node whose file was changed after it was hashed gives other bytes than the manifest says: b fetches from it and from a, names
# it once, and has the right bytes.
mkdir "$scratch/other"
cp "$SN_TEST_MODEL" "$scratch/other/"
start_node wrong "$scratch/other/$(basename "$SN_TEST_MODEL")" 0:2 --join "${address[seed]}" --share-weights 1GiB --log-level debug
wait_ready wrong
wait_until 60 grep -q 'weights shared' "$scratch/wrong.err"
dd if=/dev/zero of="$scratch/other/$(basename "$SN_TEST_MODEL")" bs=1M seek=2 count=80 conv=notrunc status=none
volunteer b --join "${address[wrong]}" # a may not have heard yet that it shares the model
wait_ready b
[ "$(grep -c 'sender dropped.*name=wrong.*not those of the model' "$scratch/b.err")" = 1 ] || fail "b did not drop the node that sent other bytes"
cmp -s "$SN_TEST_MODEL" "$(echo "$scratch"/cache-b/models/swarm/*/*.gguf)" || fail "b has other bytes than the seed"
stop_node wrong
stop_node seed
volunteer c --join "${address[b]}" --blocks 10:12
wait_ready c
[ "$(du -k "$scratch/cache-c" | tail -1 | cut -f1)" -lt 60000 ] || fail "two blocks and the ends took the whole file"

succeeds "$bin/swarm" generate --cache "$scratch/cache-client" --join "${address[a]}" "${say[@]}"
cmp -s "$scratch/run.out" "$scratch/expected" || fail "what was fetched computes another text"

# A client without a file knows the hashes of all blocks: it uses no node that has others under the model's name.
start_node forged "$scratch/other/$(basename "$SN_TEST_MODEL")" all --join "${address[a]}" --share-weights off
wait_ready forged
refuses 1 'no node serves blocks|forged' "$bin/swarm" generate --cache "$scratch/cache-client" --join "${address[a]}" --only forged "${say[@]}"
grep -q 'other weights' "$scratch/run.err" || fail "the client does not say why it uses no node: $(cat "$scratch/run.err")"

# What was fetched can be listed, verified against its manifest, and removed; a manifest can be made and signed by hand.
models=("$bin/swarm" models --cache "$scratch/cache-client")
succeeds "${models[@]}" --json
id=$(query "$scratch/run.out" 'd["models"][0]["name"]')
[[ $id == swarm:* ]] || fail "swarm models lists $id"
succeeds "${models[@]}" verify
grep -q 'right, .* not here' "$scratch/run.out" || fail "nothing was verified: $(cat "$scratch/run.out")"
succeeds "$bin/swarm" keygen --out "$scratch/id"
succeeds "$bin/swarm" hash "$SN_TEST_MODEL" --identity "$scratch/id" --out "$scratch/manifest"
[ "$(cat "$scratch/run.out")" = "$id" ] || fail "the manifest is $(cat "$scratch/run.out"), and the swarm's $id"
part=$(echo "$scratch"/cache-client/models/swarm/*/*.gguf)
succeeds "$bin/swarm" hash "$part" --manifest "$scratch/manifest"
grep -q 'signed by [0-9a-f]*; .* are not here' "$scratch/run.out" || fail "$(cat "$scratch/run.out")"
refuses 2 'is not what the manifest says, at byte' "$bin/swarm" hash "$scratch/other/$(basename "$SN_TEST_MODEL")" --manifest "$scratch/manifest"
sed -i '$s/.$/x/' "$scratch/manifest"
refuses 2 'the manifest is wrong in line' "$bin/swarm" hash "$part" --manifest "$scratch/manifest"
printf x | dd of="$part" bs=1 seek=1000 conv=notrunc status=none
refuses 2 'at byte 0: fetch it again' "${models[@]}" verify
refuses 2 'begins with .swarm:xyz' "${models[@]}" remove swarm:xyz
succeeds "${models[@]}" remove "$id"
[ -z "$(ls "$scratch/cache-client/models/swarm")" ] || fail "the model was not removed"

# A disk that takes no more is one sentence.
(
  trap '' XFSZ
  ulimit -f 20000
  run "$bin/swarm" generate --cache "$scratch/cache-full" --join "${address[a]}" "${say[@]}"
  [ $rc = 2 ] && tail -n 1 "$scratch/run.err" | grep -q 'cannot be written: File too large'
) || fail "a full disk: $(cat "$scratch/run.err")"
for name in a b c forged; do stop_node $name; done
echo "ok"
