#!/bin/bash
# Volunteers without a file: they know one address, choose the model, fetch it from the seed and from each other, and serve; the
# seed leaves; a client without a file chats.
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
volunteer b --join "${address[a]}"
wait_ready b
stop_node seed
volunteer c --join "${address[b]}" --blocks 10:12
wait_ready c
[ "$(du -k "$scratch/cache-c" | tail -1 | cut -f1)" -lt 60000 ] || fail "two blocks and the ends took the whole file"

succeeds "$bin/swarm" generate --cache "$scratch/cache-client" --join "${address[a]}" "${say[@]}"
cmp -s "$scratch/run.out" "$scratch/expected" || fail "what was fetched computes another text"
for name in a b c; do stop_node $name; done
echo "ok"
