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
until grep -q 'weights shared' "$scratch/wrong.err"; do pause 0.1; done
dd if=/dev/zero of="$scratch/other/$(basename "$SN_TEST_MODEL")" bs=1M seek=2 count=80 conv=notrunc status=none
volunteer b --join "${address[a]}"
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
for name in a b c; do stop_node $name; done
echo "ok"
