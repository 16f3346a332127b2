#!/usr/bin/env bash
# What draft tokens gain over slow links, by the length of a lap: TCP of the kernel through a router with delay (tests/support/wan), three
# nodes of one thread, windows of draft tokens under way. The model drafts for itself, then copies of it with noise in their
# weights, then one of which nothing is accepted. Prints tables in Markdown. Needs the rights to make network namespaces, and python3.
#
#     SN_BUILD=build tests/bench/drafts.sh [-m MODEL] [-t TEMPERATURE] [-n NOISES] [-w WAYS] [-q] [LAP...]     LAP in ms: 50 100 200 400
#
# Without a model: a made one that computes little, whose text is noise. NOISES: of the copies, '0.025 0.01 0.005'. WAYS: 'client push'. -q:
# short, to see that everything runs. On a busy machine `chrt -f 5` stands before the command, for all of its programs.
#
# tokens/s: of a text; where the model drafts for itself, of its second half, when windows are as many as they will be. alpha: share of the judged draft tokens
# that was accepted. T: of a token without drafts. tau: of a token at the slowest of drafting with the LM head, which are one
# thread's, a node, and the client's line. No linear speculation exceeds 1/tau or 1/((1 - alpha) T); what a drafter that takes time
# can reach is 1/((1 - alpha) T + tau).
. "$(dirname "${BASH_SOURCE[0]}")/../support/wan/wan.sh"
model='' temperature=1 noises='0.025 0.01 0.005' ways='client push' scale=1 rate=100
while getopts m:t:n:w:q option; do
  case $option in
  m) model=$OPTARG ;; t) temperature=$OPTARG ;; n) noises=$OPTARG ;; w) ways=$OPTARG ;;
  q) scale=8 noises=0.01 ways=push ;;
  *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || set -- 50 100 200 400
echo "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg), $(chrt -p $$ | sed -n "s/.*policy: //p")," \
  "$(git -C "$here" describe --always --dirty 2>/dev/null || echo no commit), $(date +%F)"
made() { python3 "$here/../bench/synthetic_model.py" "$scratch/$1.gguf" --shape tiny --type Q8_0 --blocks "$2"; }
if [ -z "$model" ]; then
  made made 3
  model=$scratch/made.gguf
fi
for noise in $noises; do python3 "$here/../bench/noisy_copy.py" "$model" "$noise" "$scratch/copy-$noise.gguf"; done
python3 "$here/../bench/noisy_copy.py" "$model" 30 "$scratch/nonsense.gguf"
read -r blocks width < <("$bin/swarm" inspect --json --model "$model" | python3 -c '
import json, sys
hparams = json.load(sys.stdin)["hparams"]
print(hparams["n_blocks"], hparams["n_embd"])')
wan 4
link rate $rate
start_chain() {
  link rtt "$1"
  start_on 2 a "$model" 0:$((blocks / 3))
  wait_ready a
  start_on 3 b "$model" $((blocks / 3)):$((2 * blocks / 3)) --join 10.99.0.2:7001
  start_on 4 c "$model" $((2 * blocks / 3)):"$blocks" --join 10.99.0.2:7001
  wait_ready b c
  pause 2
}
# text TOKENS [DRAFTER]
text() {
  local n=$1
  shift
  at 1 timeout 200 "$bin/tests/bench_drafts" "$model" 10.99.0.2:7001 "$way" "$n" "$temperature" "$@" || fail "$way, lap of $lap ms, $*"
}
measure() {
  local way=$1 lap=$2 name file rtt plain figures
  [ "$way" = push ] && rtt=$((lap / 2)) || rtt=$((lap / 3))
  start_chain "$rtt"
  figures=$(text $((4000 / lap / scale + 8)))
  read -r plain _ <<<"$figures"
  for name in itself $noises nothing; do
    case $name in
    itself) file=$model n=1000 ;;
    nothing) file=$scratch/nonsense.gguf n=$((10000 / lap + 8)) ;;
    *) file=$scratch/copy-$name.gguf n=$((40000 / lap)) ;;
    esac
    figures=$(text $((n / scale)) "$file")
    python3 - "$way" "$lap" "$name" "$plain" "$width" "$rate" $figures <<'PYTHON'
import sys
way, lap, name, plain, width, rate, whole, half, alpha, windows, ahead, client, node, _ = sys.argv[1:]
plain, got, alpha = float(plain), float(half if name == "itself" else whole), float(alpha)
line = int(width) * 4 * 8 / (float(rate) * 1e3) * (1 if way == "push" else 3)
T, tau = 1e3 / plain, max(float(client), float(node), line)
bound = min(1e3 / tau, 1e3 / ((1 - alpha) * T) if alpha < 1 else 1e9)
reach = 1e3 / ((1 - alpha) * T + tau)
print(f"| {lap} | {way} | {name} | {alpha:.3f} | {plain:.2f} | {got:.1f} | {tau:.2f} | {bound:.0f} | {100 * got / bound:.0f} % | {100 * got / reach:.0f} % | {got / plain:.2f} | {windows}, {ahead} |")
PYTHON
  done
  for name in a b c; do kill_node $name; done
}
printf '\n| lap, ms | way | drafter: noise | alpha | without, tok/s | with, tok/s | tau, ms | bound, tok/s | of it | of what can be reached | gain | windows, ahead |\n%s\n' \
  '| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |'
for lap; do for way in $ways; do measure "$way" "$lap"; done; done
echo
echo "the router was late by, us (mean, most): $(counted | tail -1)"
