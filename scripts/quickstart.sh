#!/usr/bin/env bash
# From nothing to text: installs packages, builds, fetches a real model, starts nodes on this machine, and generates.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'EOF'
usage: scripts/quickstart.sh [--prompt TEXT | --serve] [--nodes N] [--max-tokens N] [--model PATH]

Installs what the build needs (with apt; nothing if it is there), builds, fetches SmolLM2-135M-Instruct (kept for the next
run), starts N nodes on 127.0.0.1 that share the model's blocks, and generates text from the prompt. Without --prompt, on a
terminal, it opens a chat; with --serve it serves the OpenAI API and pages for a browser, and prints their address. The
nodes end with the script.

  -p, --prompt TEXT     text to continue
      --serve           serve HTTP until Ctrl-C
      --listen HOST:PORT  where (default 127.0.0.1:8080)
      --nodes N         nodes that share the blocks (default 3)
  -n, --max-tokens N    limit of generated tokens (default 64)
  -m, --model PATH      another model: a GGUF file or a Hugging Face folder
EOF
}

prompt="" nodes=3 max_tokens=64 model="" has_prompt=no serve=no listen=127.0.0.1:8080
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) usage; exit 0 ;;
    --serve) serve=yes; shift ;;
    --prompt | -p | --listen | --nodes | --max-tokens | -n | --model | -m)
      [ $# -ge 2 ] || die "$1 needs a value: see --help"
      case "$1" in
        --prompt | -p) prompt=$2 has_prompt=yes ;;
        --listen) listen=$2 ;;
        --nodes) nodes=$2 ;;
        --max-tokens | -n) max_tokens=$2 ;;
        --model | -m) model=$2 ;;
      esac
      shift 2 ;;
    *) die "unknown option '$1': see --help" ;;
  esac
done
[[ $nodes =~ ^[1-9][0-9]?$ ]] || die "--nodes must be a number from 1 to 99"
[[ $max_tokens =~ ^[1-9][0-9]*$ ]] || die "--max-tokens must be a number from 1 on"

# Whether a program listens at HOST:PORT. Any address is asked at this machine's own.
is_taken() {
  local host=${1%:*} port=${1##*:}
  host=${host#[} host=${host%]}
  case $host in '*' | 0.0.0.0) host=127.0.0.1 ;; ::) host=::1 ;; esac
  [ "$port" != 0 ] && (exec 3<>"/dev/tcp/$host/$port") 2>/dev/null
}
[ "$serve" = no ] || ! is_taken "$listen" || die "another program listens at $listen: end it, or give another --listen HOST:PORT"

need_packages $BUILD_PACKAGES
[ -n "$model" ] || need_packages $MODEL_PACKAGES
say "building"
TARGETS=(swarm swarm-node swarm_shared) # the last one for 'cmake --install build'
build build -DCMAKE_BUILD_TYPE=Release $(for_this_gpu build)
if [ -z "$model" ]; then model=$(real_model) || die "no model: give one with --model PATH"; fi

logs=$(mktemp -d)
pids=()
stop_nodes() {
  trap - EXIT
  for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$logs"
}
trap stop_nodes EXIT
trap 'exit 130' INT TERM

# wait_ready N NAME: waits until process N has printed its ready line; fails when it ends before.
wait_ready() {
  local i
  for ((i = 0; i < 3000; i++)); do
    grep -q '^ready:' "$logs/$1.out" 2>/dev/null && return 0
    kill -0 "${pids[$1]}" 2>/dev/null || { [ ! -f "$logs/$1.err" ] || cat "$logs/$1.err" >&2; die "$2 did not start: its log is above"; }
    sleep 0.02
  done
  die "$2 was not ready within a minute"
}

blocks=$(build/swarm inspect --model "$model" --json | sed -n 's/.*"n_blocks": *\([0-9]*\).*/\1/p') || exit
[ "$nodes" -le "$blocks" ] || die "the model has $blocks blocks: --nodes must be at most that"
say "starting $nodes nodes for $blocks blocks"
join=()
for ((k = 0; k < nodes; k++)); do
  build/swarm-node --model "$model" --blocks "$((blocks * k / nodes)):$((blocks * (k + 1) / nodes))" --name "node$k" \
    --listen 127.0.0.1:0 --kv-memory 256MiB "${join[@]}" >"$logs/$k.out" 2>"$logs/$k.err" &
  pids[k]=$!
  if [ "$k" = 0 ]; then
    wait_ready 0 "node 0"
    address=$(sed -n 's/^ready: address=\([^ ]*\).*/\1/p' "$logs/0.out")
    join=(--join "$address")
  fi
done
for ((k = 0; k < nodes; k++)); do
  wait_ready "$k" "node $k"
  sed -n "s|^ready: address=\([^ ]*\).* blocks=\([^ ]*\)/\([0-9]*\) weights=\([^ ]* [^ ]*\).*|  node$k at \1: blocks \2 of \3, \4 of weights|p" "$logs/$k.out" >&2
done

if [ "$serve" = yes ]; then
  build/swarm serve --model "$model" "${join[@]}" --listen "$listen" >"$logs/$nodes.out" &
  pids[nodes]=$!
  wait_ready "$nodes" "the server"
  url=$(sed -n 's/^ready: .* url=\([^ ]*\) .*/\1/p' "$logs/$nodes.out")
  printf 'chat in a browser:  %s/\nmap of the swarm:   %s/swarm\nOpenAI API:         %s/v1\n' "$url" "$url" "$url"
  wait "${pids[nodes]}"
elif [ "$has_prompt" = no ] && [ -t 0 ] && [ -t 1 ]; then
  build/swarm chat --model "$model" "${join[@]}"
else
  [ "$has_prompt" = yes ] || prompt="The three most important things in life are"
  build/swarm generate --model "$model" "${join[@]}" --prompt "$prompt" --max-tokens "$max_tokens"
fi
