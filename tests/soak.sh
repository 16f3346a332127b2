#!/usr/bin/env bash
# tests/soak.sh [MINUTES [SEED]]: a swarm of real processes, each in a network namespace of its own. Nodes are killed, drained,
# stopped, cut off and slowed down at random, and started again with their old identities, while clients generate text all the
# time. Every text must be correct, none may be lost, and the memory of every node must stay constant: the slope of a line through its
# samples counts. Node 0 is never disturbed, and its first tenth is left out. In the second half only faults are drawn that a process
# survives, so that each node lives that long: the others are judged there, less its first fifth.
# Without permission for several namespaces all processes share one, and the network does not fail; without permission for one,
# the test is skipped. SOAK_SECONDS in the environment sets a shorter time. Ends with one line of statistics; exit code 0: passed,
# 1: failed, 77: skipped.
set -uo pipefail
if [ -z "${SOAK_INSIDE:-}" ]; then
  unshare -n -m --propagation private true 2>/dev/null || { echo "network namespaces are not permitted here"; exit 77; }
  SOAK_INSIDE=yes exec unshare -n -m --propagation private bash "$0" "$@"
fi
. "$(dirname "${BASH_SOURCE[0]}")/system/lib.sh"
command -v ip >/dev/null || skip "ip (package iproute2) is not installed"
seconds=${SOAK_SECONDS:-$((${1:-1} * 60))}
seed=${2:-1}
RANDOM=$seed
model=$fixtures/golden/llama
prompts=6 tokens=24 loops=3
span=([0]=0:4 [1]=0:2 [2]=0:2 [3]=2:4 [4]=2:4 [5]=1:3)
nodes=${#span[@]}
declare -A fault # node -> its present fault, which ends at second until[node]
declare -A until
kills=0 drains=0 stops=0 cuts=0 slowdowns=0

# -- the network: a bridge with a veth pair to each node

ip link set lo up
separate=no
mkdir -p /run/netns && mount -t tmpfs none /run/netns 2>/dev/null && ip link add soak type bridge 2>/dev/null && separate=yes
if [ $separate = yes ]; then
  ip addr add 10.77.0.1/24 dev soak && ip link set soak up
  for ((i = 0; i < nodes; i++)); do
    ip netns add "n$i" && ip link add "v$i" type veth peer name eth0 netns "n$i" && ip link set "v$i" master soak up &&
      ip -n "n$i" addr add "10.77.0.$((10 + i))/24" dev eth0 && ip -n "n$i" link set eth0 up && ip -n "n$i" link set lo up ||
      fail "the namespace of node $i cannot be made"
  done
fi
address_of() { if [ $separate = yes ]; then echo "10.77.0.$((10 + $1)):31330"; else echo "127.0.0.1:$((31330 + $1))"; fi; }

# -- nodes

for ((i = 0; i < nodes; i++)); do "$bin/swarm" keygen --out "$scratch/key$i" >/dev/null || fail "no key"; done

begin_node() { # begin_node NUMBER: the node joins two others
  local inside=()
  [ $separate = yes ] && inside=(ip netns exec "n$1")
  start "n$1" "${inside[@]}" "$bin/swarm-node" --model "$model" --blocks "${span[$1]}" --name "n$1" --threads 1 \
    --listen "$(address_of "$1")" --identity "$scratch/key$1" --kv-memory 4MiB --session-timeout 20 --drain-timeout 5 \
    --join "$(address_of $((($1 + 1) % nodes)))" --join "$(address_of $((($1 + 2) % nodes)))" --log-level warn
}

# Whether every block has two nodes without a fault even if this one has a fault.
is_redundant() {
  local i count=(0 0 0 0) b
  [ "$1" != 0 ] || return 1 # node 0 is never disturbed
  for ((i = 0; i < nodes; i++)); do
    [ "$i" = "$1" ] || [ -n "${fault[$i]:-}" ] && continue
    for ((b = ${span[$i]%:*}; b < ${span[$i]#*:}; b++)); do count[b]=$((count[b] + 1)); done
  done
  for b in "${count[@]}"; do [ "$b" -ge 2 ] || return 1; done
}

# slow_down PID: the process runs for a third of the time, in pieces of 20 ms.
slow_down() { while kill -STOP "$1" && sleep 0.04 && kill -CONT "$1"; do sleep 0.02; done 2>/dev/null; }

begin_fault() {
  local i=$((RANDOM % nodes)) kind=$((RANDOM % 5))
  [ $SECONDS -lt $((seconds / 2)) ] || kind=$((2 + RANDOM % 3))
  [ -z "${fault[$i]:-}" ] && is_redundant "$i" || return 0
  until[$i]=$((SECONDS + 1 + RANDOM % 5))
  case $kind in
    0) kill_node "n$i"; fault[$i]=dead kills=$((kills + 1)) ;;
    1) signal "n$i" TERM; fault[$i]=leaving drains=$((drains + 1)) ;;
    2) signal "n$i" STOP; fault[$i]=stopped stops=$((stops + 1)) ;;
    3) [ $separate = yes ] || return 0; ip link set "v$i" down; fault[$i]=cut cuts=$((cuts + 1)) ;;
    4) slow_down "${pid[n$i]}" & pid[slow$i]=$!; fault[$i]=slow slowdowns=$((slowdowns + 1)) ;;
  esac
}

end_faults() {
  local i
  for i in "${!fault[@]}"; do
    [ "$SECONDS" -ge "${until[$i]}" ] || continue
    case ${fault[$i]} in
      dead) begin_node "$i" ;;
      leaving)
        if kill -0 "${pid[n$i]}" 2>/dev/null; then
          [ "$SECONDS" -lt $((until[$i] + 15)) ] || fail "n$i has not ended after SIGTERM"
          continue
        fi
        wait_end "n$i" 1
        [ $rc = 0 ] || { [ $rc = 143 ] && ! grep -q '^ready' "$scratch/n$i.out"; } || # told to end while it was starting
          fail "n$i ended with $rc"
        begin_node "$i" ;;
      stopped) signal "n$i" CONT ;;
      cut) ip link set "v$i" up ;;
      slow) kill "${pid[slow$i]}"; wait "${pid[slow$i]}" 2>/dev/null; unset "pid[slow$i]"; signal "n$i" CONT ;;
    esac
    unset "fault[$i]" "until[$i]"
  done
}

# -- clients: each generates texts until the file go is removed, and records each result

for ((p = 0; p < prompts; p++)); do
  golden_ids llama "$scratch/ids$p" $((3 + 17 * p))
  "$bin/swarm" generate --model "$model" --ids-file "$scratch/ids$p" --max-tokens $tokens --ignore-eos --json --local all \
    --threads 1 >"$scratch/right$p" 2>/dev/null || fail "no reference for prompt $p"
done
ids_of() { sed 's/.*"ids": *\(\[[^]]*\]\).*/\1/' "$1" | tr -d '\n '; }
for ((p = 0; p < prompts; p++)); do
  right[p]=$(ids_of "$scratch/right$p")
  case ${right[p]} in '['*']') ;; *) fail "the reference for prompt $p is not a list of ids" ;; esac
done

generate_texts() { # generate_texts NUMBER
  local p push out=$scratch/text$1
  RANDOM=$((seed * 100 + $1))
  while [ -e "$scratch/go" ]; do
    p=$((RANDOM % prompts)) push=()
    [ $((RANDOM % 2)) = 0 ] && push=(--push)
    if timeout -k 2 120 "$bin/swarm" generate --model "$model" --ids-file "$scratch/ids$p" --max-tokens $tokens --ignore-eos \
      --json --threads 1 --timeout 4 --max-retries 12 "${push[@]}" --join "$(address_of 0)" --join "$(address_of $((1 + RANDOM % (nodes - 1))))" \
      >"$out" 2>"$out.stderr"; then
      if [ "$(ids_of "$out")" = "${right[p]}" ]; then echo right; else echo wrong; cp "$out" "$scratch/wrong.err"; fi
    else
      echo "lost: $(tail -n 1 "$out.stderr")"
    fi
  done >"$scratch/notes$1"
}

# A line for each node: its name, its process, the second, KiB of memory.
sample_memory() {
  local i
  for ((i = 0; i < nodes; i++)); do
    [ -z "${pid[n$i]:-}" ] || awk -v n="n$i ${pid[n$i]} $SECONDS" '/^VmRSS/ { print n, $2 }' "/proc/${pid[n$i]}/status" 2>/dev/null
  done >>"$scratch/rss"
}
# slope FROM: reads seconds and KiB; prints the slope in KiB a minute of a line through the samples from second FROM on.
slope() {
  awk -v from="$1" '$1 >= from { n++; x += $1; y += $2; xx += $1 * $1; xy += $1 * $2 }
    END { d = n * xx - x * x; if (n < 10 || d <= 0) exit 1; printf "%.0f\n", 60 * (n * xy - x * y) / d }'
}

for ((i = 0; i < nodes; i++)); do begin_node "$i"; done
wait_ready $(for ((i = 0; i < nodes; i++)); do echo "n$i"; done)
sleep 1
touch "$scratch/go"
for ((i = 0; i < loops; i++)); do
  generate_texts "$i" &
  pid[loop$i]=$!
done
SECONDS=0
while [ $SECONDS -lt "$seconds" ]; do
  sleep 1
  sample_memory
  end_faults
  begin_fault
  kill -0 "${pid[n0]}" 2>/dev/null || fail "n0 died"
done
rm "$scratch/go"
for ((i = 0; i < loops; i++)); do wait_end "loop$i" 130; done

count() { cat "$scratch"/notes* | grep -c "^$1"; }
right=$(count right) wrong=$(count wrong) lost=$(count lost)
grown=$(awk '$1 == "n0" { print $3, $4 }' "$scratch/rss" | slope $((seconds / 10))) || fail "too short to measure the memory"
steepest=0 judged=0
for ((i = 1; i < nodes; i++)); do
  slope_i=$(awk -v n="n$i" -v p="${pid[n$i]:-}" '$1 == n && $2 == p { print $3, $4 }' "$scratch/rss" | slope $((seconds * 6 / 10))) || continue
  judged=$((judged + 1))
  [ "$slope_i" -le $steepest ] || steepest=$slope_i
done
echo "soak: $seconds s, seed $seed, separate namespaces $separate: $right correct, $wrong wrong, $lost lost; $kills killed, $drains drained," \
  "$stops stopped, $cuts cut off, $slowdowns slowed down; memory of n0 grows by $grown KiB a minute, of $judged others by $steepest at most"
cat "$scratch"/notes* | grep '^lost' | sort | uniq -c | sort -rn | head -5
[ "$wrong" = 0 ] || fail "$wrong texts were wrong"
[ "$lost" = 0 ] || fail "$lost texts were lost"
[ "$right" -gt "$seconds" ] || fail "only $right texts in $seconds seconds"
[ $((grown * seconds / 60)) -le 8192 ] || fail "the memory of n0 grows by $grown KiB a minute"
[ $((steepest * seconds / 60 * 4 / 10)) -le 8192 ] || fail "the memory of a node grows by $steepest KiB a minute"
[ $judged = $((nodes - 1)) ] || [ "$seconds" -lt 600 ] || fail "only $judged of $((nodes - 1)) nodes lived through the second half"
for n in $kills $drains $stops $cuts $slowdowns; do [ "$n" -gt 0 ] || [ "$seconds" -lt 600 ] || fail "a kind of fault was not drawn"; done
