#!/usr/bin/env bash
# Four agents with conversations of 6,000 tokens over a node that holds two, at once and through two servers: every turn is answered,
# with the texts of a node that holds all, and the node's memory keeps its bounds. A prompt that fits nowhere is refused at once.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
text_model
sed -i 's/"max_position_embeddings": 256/"max_position_embeddings": 32768/' "$scratch/model/config.json"
client() { timeout -k 2 400 python3 "$here/agents_client.py" "$@" || fail "$1"; }
start_server() { # NAME NODE [option...]
  local name=$1 node=$2
  shift 2
  start "$name" "$bin/swarm" serve --model "$scratch/model" --served-model-name tiny --join "${address[$node]}" --listen 127.0.0.1:0 "$@"
}
node_options=(--client-sessions 0 --device cpu --metrics 0 --prefix-cache-memory 0)
# A token takes 512 bytes. Of 6.5 MiB two conversations take 6.
start_node big "$scratch/model" all "${node_options[@]}"
start_node small "$scratch/model" all "${node_options[@]}" --kv-memory 6656KiB
wait_ready big small
start_server all big
start_server one small
start_server two small --ctx 30000
wait_ready all one two

client agents "http://${address[all]}" 4 6000 3 >"$scratch/expected"
client agents "http://${address[one]}" 4 6000 3 >"$scratch/texts"
cmp -s "$scratch/texts" "$scratch/expected" || fail "four agents at one server get other texts"
[ "$(metric small swapped_bytes)" -gt 0 ] || fail "no idle session was swapped out"
[ "$(metric small swap_max_bytes)" = $((26 << 20)) ] || fail "idle sessions may take $(metric small swap_max_bytes) bytes"
# Those of the first server are idle now; another one has the same conversations.
client agents "http://${address[two]}" 4 6000 2 >"$scratch/texts"
python3 -c 'import json, sys; a, b = (json.load(open(f)) for f in sys.argv[1:]); sys.exit(a != [t[:2] for t in b])' \
  "$scratch/texts" "$scratch/expected" || fail "four agents at another server get other texts"
[ "$(metric small swapped_bytes)" -le "$(metric small swap_max_bytes)" ] || fail "swapped sessions exceed their limit"

tokens=$(metric small tokens_total)
client too_long "http://${address[two]}" 14000
python3 -c 'import json; json.dump([3 + i % 300 for i in range(14000)], open("'"$scratch"'/ids", "w"))'
refuses 2 "14000 tokens do not fit: for blocks 0:4 the nodes have KV memory for 13312 at most" \
  "$bin/swarm" generate --model "$scratch/model" --ids-file "$scratch/ids" --max-tokens 4 --join "${address[small]}"
[ "$(metric small tokens_total)" = "$tokens" ] || fail "a prompt that fits nowhere was computed"
! grep -q "banned" "$scratch/run.err" "$scratch/two.err" || fail "the node was banned for a prompt that fits nowhere"

# With a node that holds it, it is computed there, whichever is nearer.
start_node roomy "$scratch/model" all "${node_options[@]}" --join "${address[small]}"
wait_ready roomy
for seed in 1 2; do
  succeeds "$bin/swarm" generate --model "$scratch/model" --ids-file "$scratch/ids" --max-tokens 4 --seed $seed --json \
    --join "${address[small]}" --join "${address[roomy]}"
  ! grep -q "banned" "$scratch/run.err" || fail "a node was banned for a prompt that does not fit it"
done
[ "$(metric small tokens_total)" = "$tokens" ] || fail "a prompt was computed where it does not fit"
for name in all one two; do signal $name TERM; wait_end $name 60; done
for name in roomy small big; do stop_node $name; done
