#!/usr/bin/env bash
# What people give wrongly gets one sentence and the exit code for it; what they give rightly works.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
llama=$fixtures/golden/llama
node=$bin/swarm-node
golden_ids llama "$scratch/ids"

for program in "$bin/swarm" "$node"; do
  succeeds "$program" --help
  grep -q 'Exit codes' "$scratch/run.out" || fail "$program --help says nothing of exit codes"
  succeeds "$program" --version
  grep -Eq "^$(basename "$program") [0-9]" "$scratch/run.out" || fail "$program --version prints no version"
done
refuses 2 "genrate.*generate" "$bin/swarm" genrate
refuses 2 "blocks" "$node" --model "$llama"
refuses 2 "wrongly" "$node" --wrongly

# Ports and addresses.
start_node a "$llama" all
wait_ready a
refuses 2 "${address[a]}.* in use.*--listen" "$node" --model "$llama" --blocks all --listen "${address[a]}"
refuses 2 "address" "$node" --model "$llama" --blocks all --listen "7001"
refuses 2 "device" "$node" --model "$llama" --blocks all --device tpu
refuses 2 "join" "$bin/swarm" generate --model "$llama" --ids-file "$scratch/ids"

# Blocks.
for blocks in 3:2 2:2 0:5 4:5 -1:2 x 1:; do
  refuses 2 "block" "$node" --model "$llama" --blocks "$blocks" --listen tcp://127.0.0.1:0
done

# Models: another one than the swarm's, none, cut off, not readable.
refuses 1 "nobody serves blocks 0:4" "$bin/swarm" generate --model "$fixtures/golden/qwen3" --join "${address[a]}" \
  --ids-file "$scratch/ids" --timeout 2
refuses 2 "no-such" "$node" --model "$scratch/no-such" --blocks all
mkdir "$scratch/cut"
cp "$llama/config.json" "$scratch/cut/"
head -c 300000 "$llama/model.safetensors" >"$scratch/cut/model.safetensors"
refuses 2 "cut" "$node" --model "$scratch/cut" --blocks all --listen tcp://127.0.0.1:0
refuses 2 "cut" "$bin/swarm" inspect "$scratch/cut"
head -c 100 "$fixtures/gguf/gguf_types.gguf" >"$scratch/cut.gguf"
refuses 2 "cut.gguf" "$node" --model "$scratch/cut.gguf" --blocks all
if [ "$(id -u)" != 0 ]; then
  cp "$fixtures/gguf/gguf_types.gguf" "$scratch/hidden.gguf"
  chmod 0 "$scratch/hidden.gguf"
  refuses 2 "hidden.gguf" "$node" --model "$scratch/hidden.gguf" --blocks all
fi

# Limits: the cache, the context.
refuses 2 "kv-memory" "$node" --model "$llama" --blocks all --listen tcp://127.0.0.1:0 --kv-memory 1KiB
start_node small "$llama" all --kv-memory 40KiB --room-timeout 1
wait_ready small
golden_ids llama "$scratch/long" 200
refuses 1 "cache" "$bin/swarm" forward --model "$llama" --join "${address[small]}" --ids-file "$scratch/long" --out \
  "$scratch/x" --timeout 5
golden_ids llama "$scratch/longer" 300
for how in "--join ${address[a]}" "--local all"; do
  refuses 2 "300.*256" "$bin/swarm" generate --model "$llama" $how --ids-file "$scratch/longer"
  refuses 2 "300.*256" "$bin/swarm" forward --model "$llama" $how --ids-file "$scratch/longer" --out "$scratch/x"
done

# Identities.
succeeds "$bin/swarm" keygen --out "$scratch/id"
refuses 2 "exist|overwr" "$bin/swarm" keygen --out "$scratch/id"
start_node keyed "$llama" all --identity "$scratch/id"
wait_ready keyed
chmod 0644 "$scratch/id"
refuses 2 "chmod 600|mode|others" "$node" --model "$llama" --blocks all --listen tcp://127.0.0.1:0 --identity "$scratch/id"
refuses 2 "$scratch/cut.gguf" "$node" --model "$llama" --blocks all --identity "$scratch/cut.gguf"

# A pinned key: the right one is served, another reaches nobody.
key=$(sed -n 's/.* key=\([0-9a-f]*\).*/\1/p' "$scratch/keyed.out")
succeeds "$bin/swarm" status --join "${address[keyed]}#$key"
refuses 1 "no node answered" "$bin/swarm" status --join "${address[keyed]}#${key:2}00" --timeout 1

# Files of options: every option of the examples in configs/, here with values for this machine. But --dht: OpenDHT listens on
# every address of the machine, test_dht.sh has a network for it. And but --swarm-key: the other nodes here have none, see
# test_private.sh. Nor saved sessions: --load goes with none of --audit, see test_saved.sh. Nor --draft-model beside --draft.
example() { # example FILE NAME=VALUE...: its lines, all switched on, with these values in place of its own
  local file=$1 pair
  sed -E '/^#(dht|swarm-key|load|save|session-key|draft-model)/d; s/^#([a-z-]+ = )/\1/' "$here/../../configs/$file" >"$scratch/$file"
  shift
  for pair; do sed -i -E "s|^(${pair%%=*} = )[^#]*|\1${pair#*=} |" "$scratch/$file"; done
}
chmod 0600 "$scratch/id"
example node.conf "model=$llama" blocks=0:4 listen=tcp://127.0.0.1:0 "public=${address[a]}" "join=${address[a]}" \
  "identity=$scratch/id" isa=c device-map=0:1=cpu,1:2=host,2:4=disk "offload-dir=$scratch/blocks" preload=1:2 "idle-dir=$scratch" \
  metrics=0 "priority=$key=2" "adapters=$fixtures/peft/lora"
start configured "$node" --config "$scratch/node.conf" --name attic2
wait_ready configured
grep -q 'in host memory, preloaded' "$scratch/configured.err" || fail "the file's device-map and preload do not count"
[ "$(ls "$scratch/blocks")" ] || fail "the file's offload-dir does not count"
succeeds "$bin/swarm" keygen --out "$scratch/client-id"
example client.conf "model=$llama" "join=${address[a]}" local=0:2 only=a "identity=$scratch/client-id" temperature=0 \
  kv-dtype=f32 "evidence=$scratch/evidence" "adapter=$fixtures/peft/lora/end"
succeeds "$bin/swarm" generate --config "$scratch/client.conf" --ids-file "$scratch/ids" --max-tokens 5 --json
[ "$(query "$scratch/run.out" 'len(d["ids"])')" = 5 ] || fail "the command line does not win over the file"
echo "colour = red" >>"$scratch/node.conf"
refuses 2 "node.conf:[0-9]+.*colour" "$node" --config "$scratch/node.conf"
for name in configured keyed small a; do stop_node "$name"; done
