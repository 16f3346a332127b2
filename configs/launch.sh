#!/usr/bin/env bash
# Starts one node on each machine of a list, with equal shares of the blocks. The nodes run as long as this script:
#
#     configs/launch.sh HOSTS --model PATH [--bin FOLDER] [-- OPTION...]
#
# HOSTS is a file with a line for each machine: the name that ssh uses, and where other machines reach it by another name or
# port, HOST:PORT. Blank lines and text after a # are ignored. The port is 31330 without one; 0 picks a free one (HOST must
# then be an address of that machine).
#
#     alpha                       # or user@alpha
#     beta   10.0.0.2:31330
#
# ssh must work without a password. The model and the programs (in FOLDER, or in the PATH of the machine) must lie on every
# machine. Options after -- go to every node, as in: -- --threads 16 --kv-memory 8GiB. The script prints the address to join,
# with its key. When the script ends, for whatever reason, the nodes end: each lives only as long as its ssh connection.
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
    *) die "unknown option '$1': options of the nodes come after --" ;;
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
[ "$n" -gt 0 ] || die "$hosts_file names no machines"

scratch=$(mktemp -d)
pids=()
finish() {
  trap - EXIT
  exec 9>&- # every ssh reads from this pipe: its end ends the node
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$scratch"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP
mkfifo "$scratch/alive"
exec 9<>"$scratch/alive"

quoted() { printf '%q ' "$@"; }
blocks=$($SSH "${hosts[0]}" "$(quoted "${bin}swarm" inspect --model "$model" --json)" </dev/null |
  sed -n 's/.*"n_blocks": *\([0-9]*\).*/\1/p') || true
[ -n "$blocks" ] || die "${hosts[0]} does not show the model $model: do ssh, the programs and the model work there?"
[ "$n" -le "$blocks" ] || die "the model has $blocks blocks, and $hosts_file names $n machines"

# The command on each machine: the node, until it ends or its standard input ends. Not by `wait -n`, which misses a node
# that has ended before it.
# shellcheck disable=SC2016
alive='exec 3<&0; "$@" 3<&- </dev/null & node=$!; { read -r _; kill -TERM $node; } <&3 >/dev/null 2>&1 & input=$!
  exec 3<&-; wait $node; code=$?; kill -TERM $input 2>/dev/null; exit $code'

# start K OPTION...: starts node K in the background.
start() {
  local k=$1 address=${addresses[$1]} listen
  shift
  case $address in
    [0-9]*.*:* | \[*) listen=(--listen "$address") ;;
    *) listen=(--listen "0.0.0.0:${address##*:}" --public "$address") ;;
  esac
  # The job ends after sed has printed the last line of the node, so that a message about the end of the job comes after it.
  $SSH "${hosts[k]}" "$(quoted bash -c "$alive" swarm-node "${bin}swarm-node" --model "$model" \
    --blocks "$((blocks * k / n)):$((blocks * (k + 1) / n))" --name "${hosts[k]##*@}" "${listen[@]}" "$@")" \
    <"$scratch/alive" 9>&- 2>&1 >"$scratch/$k.out" | sed "s/^/${hosts[k]}: /" >&2 9>&- &
  pids[k]=$!
}

wait_ready() {
  until grep -q '^ready:' "$scratch/$1.out" 2>/dev/null; do
    kill -0 "${pids[$1]}" 2>/dev/null || die "the node at ${hosts[$1]} did not start: its log is above"
    sleep 0.1
  done
  echo "${hosts[$1]}: $(cat "$scratch/$1.out")" >&2
}

start 0 "$@"
wait_ready 0
join=${addresses[0]}
[[ $join != *:0 ]] || join=$(sed -n 's/^ready: address=\([^ ]*\).*/\1/p' "$scratch/0.out")
join+="#$(sed -n 's/^ready:.* curve_key=\([0-9a-f]*\).*/\1/p' "$scratch/0.out")"
for ((k = 1; k < n; k++)); do start "$k" --join "$join" "$@"; done
for ((k = 1; k < n; k++)); do wait_ready "$k"; done
echo "--join $join"
wait -n "${pids[@]}" || true
die "a node has ended: its log is above; ending the others"
