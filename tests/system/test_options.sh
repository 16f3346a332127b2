#!/usr/bin/env bash
# Invalid options get one clear error and its exit code; valid options work.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
llama=$fixtures/golden/llama
node=$bin/swarm-node
golden_ids llama "$scratch/ids"

for program in "$bin/swarm" "$node"; do
  succeeds "$program" --help
  grep -q 'Exit codes' "$scratch/run.out" || fail "$program --help does not list exit codes"
  succeeds "$program" --version
  grep -Eq "^$(basename "$program") [0-9]" "$scratch/run.out" || fail "$program --version prints no version"
  succeeds "$program" --version --json
  needed=$(objdump -p "$program" | sed -n 's/^ *NEEDED *//p')
  for library in $(query "$scratch/run.out" '" ".join(l["name"] for l in d["libraries"] if l["version"] and l["licence"])'); do
    case $library in msgpack-c) continue ;; openssl) name=libcrypto ;; pcre2) name=libpcre2-8 ;; *) name=lib${library#lib} ;; esac
    needed=$(grep -v "^$name" <<<"$needed")
  done
  needed=$(grep -Ev '^(libc|libm|libstdc\+\+|ld-linux.*)\.so' <<<"$needed")
  [ -z "$needed" ] || fail "$program --version --json has no licence of $needed"
  [ "$(query "$scratch/run.out" 'd["program"], d["version"], d["licence"], d["build"]["dht"]')" != "" ] || fail "it says nothing of the build"
done
# A build without OpenDHT shows no option that needs it.
dht=$(query "$scratch/run.out" 'int(d["build"]["dht"])')
for program in swarm-node "swarm generate" "swarm status"; do
  for form in --help --help=man --help=completion; do
    [ "$("$bin/"$program $form | tr -d '\\' | grep -c -- '--dht')" -gt 0 ] && shown=1 || shown=0
    [ $shown = "$dht" ] || fail "$program $form: options for a DHT are shown: $shown, in a build that has one: $dht"
  done
done
refuses 2 "genrate.*generate" "$bin/swarm" genrate

# Man pages without a warning of roff, and completion in bash, both made from the tables of options.
commands=$("$bin/swarm" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p')
[ "$(wc -w <<<"$commands")" = 16 ] || fail "swarm --help lists other commands than expected: $commands"
groff=$(command -v groff) || not_tested "how man pages look (there is no groff)"
for page in swarm swarm-node $commands; do
  case $page in
    swarm | swarm-node) "$bin/$page" --help=man ;;
    *) "$bin/swarm" "$page" --help=man ;;
  esac >"$scratch/$page.1" || fail "there is no man page of $page"
  grep -q '^\.TH ' "$scratch/$page.1" || fail "the man page of $page has no title"
  if [ -n "$groff" ]; then
    groff -man -Tutf8 -ww "$scratch/$page.1" >"$scratch/$page.txt" 2>"$scratch/groff.txt" || fail "groff fails on the page of $page"
    [ ! -s "$scratch/groff.txt" ] || fail "the man page of $page: $(cat "$scratch/groff.txt")"
  fi
done
for program in swarm swarm-node; do
  "$bin/$program" --help=completion >"$scratch/$program.bash"
  bash -n "$scratch/$program.bash" || fail "the completion of $program is no script"
done
completes() { # completes EXPECTED WORD...: what bash offers at the end of the line; = is a word of its own, as in bash
  local expected=$1 got
  shift
  got=$(cd "$scratch" && bash -c '. "$0.bash"; COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _${0//-/_}; echo ${COMPREPLY[*]}' "$1" "$@")
  [[ $got == $expected ]] || fail "'$*' completes to '$got', not '$expected'"
}
completes "generate" swarm gen
completes "generate" swarm help gen
completes "--prompt --prompt-file" swarm generate --prom
completes "f32 f16 q8" swarm generate --kv-dtype ""
completes "f16" swarm generate --kv-dtype = f1
completes "swarm-node.1*" swarm generate -m swarm-node.1
completes "true false" swarm-node --plan =
completes "--blocks" swarm-node --blo
completes "debug info warn error off" swarm-node --log-level ""
completes "" swarm-node --threads ""
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
  refuses 2 "block" "$node" --model "$llama" --blocks "$blocks" --listen 127.0.0.1:0
done

# Models: not the swarm's, missing, truncated, unreadable.
refuses 1 "no node serves blocks 0:4" "$bin/swarm" generate --model "$fixtures/golden/qwen3" --join "${address[a]}" \
  --ids-file "$scratch/ids"
refuses 2 "no-such" "$node" --model "$scratch/no-such" --blocks all
mkdir "$scratch/cut"
cp "$llama/config.json" "$scratch/cut/"
head -c 300000 "$llama/model.safetensors" >"$scratch/cut/model.safetensors"
refuses 2 "cut" "$node" --model "$scratch/cut" --blocks all --listen 127.0.0.1:0
refuses 2 "cut" "$bin/swarm" inspect --model "$scratch/cut"
head -c 100 "$fixtures/gguf/gguf_types.gguf" >"$scratch/cut.gguf"
refuses 2 "cut.gguf" "$node" --model "$scratch/cut.gguf" --blocks all
if [ "$(id -u)" != 0 ]; then
  cp "$fixtures/gguf/gguf_types.gguf" "$scratch/hidden.gguf"
  chmod 0 "$scratch/hidden.gguf"
  refuses 2 "hidden.gguf" "$node" --model "$scratch/hidden.gguf" --blocks all
fi

# Limits: the KV cache, the context.
refuses 2 "kv-memory" "$node" --model "$llama" --blocks all --listen 127.0.0.1:0 --kv-memory 1KiB
start_node small "$llama" all --kv-memory 40KiB --kv-timeout 1
wait_ready small
golden_ids llama "$scratch/long" 200
refuses 2 "200 tokens do not fit.* 64 at most" "$bin/swarm" forward --model "$llama" --join "${address[small]}" --ids-file "$scratch/long" --out \
  "$scratch/x" --timeout 5
golden_ids llama "$scratch/longer" 300
for mode in "--join ${address[a]}" "--local all"; do
  refuses 2 "300.*256" "$bin/swarm" generate --model "$llama" $mode --ids-file "$scratch/longer"
  refuses 2 "300.*256" "$bin/swarm" forward --model "$llama" $mode --ids-file "$scratch/longer" --out "$scratch/x"
done

# Identities.
succeeds "$bin/swarm" keygen --out "$scratch/id"
refuses 2 "exist|overwr" "$bin/swarm" keygen --out "$scratch/id"
start_node keyed "$llama" all --identity "$scratch/id"
wait_ready keyed
# The ready line says of the weights what the table of the plan says; blocks that the model lacks are one sentence.
succeeds "$node" --model "$llama" --blocks all --plan --device cpu
planned=$(awk '$1 == "0:4" { print $3, $4 }' "$scratch/run.out")
grep -q " weights=$planned kv_cache=" "$scratch/keyed.out" || fail "the plan has weights of $planned: $(cat "$scratch/keyed.out")"
refuses 2 "'0:99' is beyond the model's blocks, which are 0:4" "$node" --model "$llama" --blocks 0:99 --listen 127.0.0.1:0
[ "$(wc -l <"$scratch/run.err")" = 1 ] || fail "there is more than the sentence: $(cat "$scratch/run.err")"
chmod 0644 "$scratch/id"
refuses 2 "chmod 600|mode|others" "$node" --model "$llama" --blocks all --listen 127.0.0.1:0 --identity "$scratch/id"
refuses 2 "$scratch/cut.gguf" "$node" --model "$llama" --blocks all --identity "$scratch/cut.gguf"

# A pinned key: with the right key there is a reply, with another one there is none.
key=$(sed -n 's/.* curve_key=\([0-9a-f]*\).*/\1/p' "$scratch/keyed.out")
succeeds "$bin/swarm" status --join "${address[keyed]}#$key"
refuses 1 "no node answered" "$bin/swarm" status --join "${address[keyed]}#${key:2}00" --timeout 1

# Configuration files: every option of the examples in configs/, with values for this machine. Left out are --dht (OpenDHT listens
# on every address of the machine: test_dht.sh), --swarm-key (the other nodes have none: test_private_swarm.sh), saved sessions
# (--load does not go with --audit: test_session_file.sh), and --draft-model (it does not go with --draft).
example() { # example FILE NAME=VALUE...: all lines of the example enabled, with these values instead of its own
  local file=$1 pair
  sed -E '/^#(dht|swarm-key|load|save|session-key|draft-model|experts)/d; s/^#([a-z-]+ = )/\1/' "$here/../../configs/$file" >"$scratch/$file"
  shift
  for pair; do sed -i -E "s|^(${pair%%=*} = )[^#]*|\1${pair#*=} |" "$scratch/$file"; done
}
chmod 0600 "$scratch/id"
example node.conf "model=$llama" blocks=0:4 listen=127.0.0.1:0 "public=${address[a]}" "join=${address[a]}" \
  "identity=$scratch/id" isa=c kv-dtype=f16 device-map=0:1=cpu,1:2=host,2:4=disk "offload-dir=$scratch/blocks" preload=1:2 "swap-dir=$scratch" \
  metrics=0 "cache=$scratch/cache" "priority=$key=2" "adapters=$fixtures/peft/lora"
start configured "$node" --config "$scratch/node.conf" --name attic2
wait_ready configured
grep -q 'in host memory, preloaded' "$scratch/configured.err" || fail "the file's device-map and preload are ignored"
[ "$(ls "$scratch/blocks")" ] || fail "the file's offload-dir is ignored"
succeeds "$bin/swarm" keygen --out "$scratch/client-id"
example client.conf "model=$llama" "join=${address[a]}" local=0:2 only=a "identity=$scratch/client-id" temperature=0 \
  "cache=$scratch/cache" kv-dtype=f16 "evidence=$scratch/evidence" "adapter=$fixtures/peft/lora/end"
succeeds "$bin/swarm" generate --config "$scratch/client.conf" --ids-file "$scratch/ids" --max-tokens 5 --json
[ "$(query "$scratch/run.out" 'len(d["ids"])')" = 5 ] || fail "the command line does not override the file"
echo "colour = red" >>"$scratch/node.conf"
refuses 2 "node.conf:[0-9]+.*colour" "$node" --config "$scratch/node.conf"
for name in configured keyed small a; do stop_node "$name"; done
