#!/usr/bin/env bash
# A stranger asks a node for its weights, then for its status, then opens a session again and again, at full speed, 64 requests at a
# time. It gets what the rates allow and no more: of weights a quarter of the rate while the node computes steps. A client generates the
# same text meanwhile.
. "$(dirname "${BASH_SOURCE[0]}")/attacked.sh"
attacked 64
# beside WHAT SECONDS: a stranger asks, while a client generates; said: what the stranger says at the end.
beside() {
  start stranger python3 "$here/../attacks/stranger.py" "${address[a]}" "$@"
  for ((i = 0; i < 600; i++)); do grep -q '^begins' "$scratch/stranger.out" && break; pause 0.1; done
  for ((i = 0; i < 3; i++)); do honest "$1"; done
  wait_end stranger 60
  said=$(tail -n 1 "$scratch/stranger.out")
  echo "$1: tokens/s beside the stranger $(query "$scratch/run.out" 'd["timings"]["decode_tok_s"]'); it $said"
}
echo "tokens/s alone $(query "$scratch/run.out" 'd["timings"]["decode_tok_s"]')"

beside weights 6
read -r took seconds refused < <(sed -n 's/^took \([0-9]*\) in \([0-9.]*\) and was refused \([0-9]*\)/\1 \2 \3/p' <<<"$said")
[ "${took:-0}" -gt 1000000 ] || fail "the stranger got ${took:-nothing}"
[ "$refused" -gt 0 ] || fail "64 requests of one key waited"
python3 -c "import sys; sys.exit($took > 16777216 * $seconds + 4000000)" || fail "the stranger got $took bytes in $seconds s"

for what in questions openings; do
  beside $what 6
  read -r answered seconds < <(sed -n 's/^answered \([0-9]*\) in \([0-9.]*\)$/\1 \2/p' <<<"$said")
  [ "${answered:-0}" -gt 256 ] || fail "the stranger got ${answered:-no} answers"
  python3 -c "import sys; sys.exit($answered > 1024 + 256 * $seconds + 64)" || fail "the stranger got $answered answers in $seconds s"
done
stop_node a
