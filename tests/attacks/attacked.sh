# A node at its default limits (of weights those for strangers from elsewhere, though this one is near), and a client of it, for
# tests of what strangers can do. Sourced, not run. attacked TOKENS: starts the node "a"; "${text[@]}" is the client's command for
# so many tokens, $ids is what it gives without an attack.
. "$(dirname "${BASH_SOURCE[0]}")/../system/lib.sh"
attacked() {
  local model=$fixtures/golden/llama
  python3 -c 'import zmq, msgpack, cryptography' 2>/dev/null || skip "python3-zmq, python3-msgpack or python3-cryptography is missing"
  golden_ids llama "$scratch/ids"
  start_node a "$model" all --share-weights 16MiB --log-level warn
  wait_ready a
  text=("$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --max-tokens "$1" --json --join "${address[a]}")
  succeeds "${text[@]}"
  ids=$(query "$scratch/run.out" 'd["ids"]')
}
