# A node at its default limits (of weights those for strangers from elsewhere, though this one is near), and a client of it, for
# tests of what strangers can do. Sourced, not run. attacked TOKENS: starts the node "a"; "${text[@]}" is the client's command for
# so many tokens, $ids is what it gives without an attack. honest WHAT: runs it beside an attack: it gives the same text, in as many
# steps, with nothing sent twice and no other node looked for. What of its time it keeps is counted where time is virtual, for each
# attack: test_client_shares (sessions and prompts), test_node_experts (requests for experts), test_listener (questions and
# openings have a rate, and others do not wait), test_strangers (hoarded sessions), test_node_weights (weights).
. "$(dirname "${BASH_SOURCE[0]}")/../system/lib.sh"
attacked() {
  local model=$fixtures/golden/llama
  python3 -c 'import zmq, msgpack, cryptography' 2>/dev/null || skip "python3-zmq, python3-msgpack or python3-cryptography is missing"
  golden_ids llama "$scratch/ids"
  start_node a "$model" all --share-weights 16MiB --log-level warn
  wait_ready a
  text=("$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --max-tokens "$1" --json --join "${address[a]}")
  succeeds "${text[@]}"
  ids=$(query "$scratch/run.out" 'd["ids"]') effort=$(query "$scratch/run.out" "$efforts")
}
efforts='d["timings"]["decode_steps"], d["timings"]["failovers"], d["timings"]["replayed_tokens"]'
honest() {
  succeeds "${text[@]}"
  [ "$(query "$scratch/run.out" 'd["ids"]')" = "$ids" ] || fail "the text differs beside $*"
  [ "$(query "$scratch/run.out" "$efforts")" = "$effort" ] ||
    fail "beside $* the client needs (steps, failovers, tokens replayed) $(query "$scratch/run.out" "$efforts"), and $effort without"
}
