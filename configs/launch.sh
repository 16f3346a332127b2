#!/usr/bin/env bash
# A swarm over the machines of a file, one node each with an equal cut of the blocks, for as long as this script runs:
#
#     configs/launch.sh HOSTS --model PATH [--bin FOLDER] [-- OPTION...]
#
# HOSTS holds a line for each machine: how ssh calls it and, where others reach it by another name or port, ADDRESS:PORT.
# Blank lines and what follows a # are ignored. Port 31330 without one; 0 picks one (then ADDRESS must be of that machine).
#
#     alpha                       # or user@alpha
#     beta   10.0.0.2:31330
#
# ssh must come in without a password, and the model and the programs (in FOLDER, or in the PATH there) lie on every
# machine. What stands behind -- goes to every node, as in: -- --threads 16 --kv-memory 8GiB. Prints the address to join, with its
# key. However this script ends, the nodes end: each lives only as long as its ssh connection.
set -euo pipefail
die() { printf 'launch.sh: %s\n' "$*" >&2; exit 2; }
SSH=${SSH:-ssh -o BatchMode=yes -o ServerAliveInterval=15}

[ $# -ge 1 ] && [ -r "$1" ] || die "usage: launch.sh HOSTS --model PATH [--bin FOLDER] [-- OPTION...]; HOSTS is a file"
hosts_file=$1 model="" bin=""
shift
while [ $# -gt 0 ]; do
  case $1 in
    --model | --bin) [ $# -ge 2 ] || die "$1 needs a value"; [ "$1" = --model ] && model=$2 || bin=$2/; shift 2 ;;
    --) shift; break ;;
    *) die "unknown option '$1': options of the nodes stand behind --" ;;
  esac
done
[ -n "$model" ] || die "--model PATH is missing"
hosts=() addresses=()
while read -r host address rest; do
  [ -n "$host" ] || continue
  [ -z "$rest" ] || die "$hosts_file: '$host $address $rest': a line is HOST [ADDRESS:PORT]"
  address=${address:-${host##*@}:31330}
  [[ $address =~ ^.+:[0-9]+$ ]] || die "$hosts_file: '$address' is no ADDRESS:PORT"
  hosts+=("$host") addresses+=("$address")
done < <(sed 's/#.*//' "$hosts_file")
n=${#hosts[@]}
[ "$n" -gt 0 ] || die "$hosts_file names no machine"

scratch=$(mktemp -d)
pids=()
finish() {
  trap - EXIT
  exec 9>&- # every ssh reads from here: the end of it ends the node
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$scratch"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP
mkfifo "$scratch/alive"
exec 9<>"$scratch/alive"

quoted() { printf '%q ' "$@"; }
blocks=$($SSH "${hosts[0]}" "$(quoted "${bin}swarm" inspect "$model" --json)" </dev/null |
  sed -n 's/.*"n_blocks": *\([0-9]*\).*/\1/p') || true
[ -n "$blocks" ] || die "${hosts[0]} does not show the model $model: do ssh, the programs and the model work there?"
[ "$n" -le "$blocks" ] || die "the model has $blocks blocks, and $hosts_file names $n machines"

# What runs there: the node, until it ends or standard input does.
# shellcheck disable=SC2016
alive='exec 3<&0; "$@" 3<&- </dev/null & node=$!; cat <&3 >/dev/null 2>&1 & input=$!
  wait -n; kill -TERM $node $input 2>/dev/null; wait $node'

# start K OPTION...: node K, in the background.
start() {
  local k=$1 address=${addresses[$1]} listen
  shift
  case $address in
    [0-9]*.*:* | \[*) listen=(--listen "tcp://$address") ;;
    *) listen=(--listen "tcp://0.0.0.0:${address##*:}" --public "tcp://$address") ;;
  esac
  $SSH "${hosts[k]}" "$(quoted bash -c "$alive" swarm-node "${bin}swarm-node" --model "$model" \
    --blocks "$((blocks * k / n)):$((blocks * (k + 1) / n))" --name "${hosts[k]##*@}" "${listen[@]}" "$@")" \
    <"$scratch/alive" 9>&- >"$scratch/$k.out" 2> >(exec sed "s/^/${hosts[k]}: /" >&2 9>&-) &
  pids[k]=$!
}

wait_ready() {
  until grep -q '^ready:' "$scratch/$1.out" 2>/dev/null; do
    kill -0 "${pids[$1]}" 2>/dev/null || die "the node at ${hosts[$1]} did not start: see its words above"
    sleep 0.1
  done
  echo "${hosts[$1]}: $(cat "$scratch/$1.out")" >&2
}

start 0 "$@"
wait_ready 0
join=tcp://${addresses[0]}
[[ $join != *:0 ]] || join=$(sed -n 's/^ready: address=\([^ ]*\).*/\1/p' "$scratch/0.out")
join+="#$(sed -n 's/^ready:.* key=\([0-9a-f]*\).*/\1/p' "$scratch/0.out")"
for ((k = 1; k < n; k++)); do start "$k" --join "$join" "$@"; done
for ((k = 1; k < n; k++)); do wait_ready "$k"; done
echo "--join $join"
wait -n "${pids[@]}" || true
die "a node has ended: see its words above; ending the others"
