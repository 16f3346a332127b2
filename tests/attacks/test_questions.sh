#!/usr/bin/env bash
# A stranger asks a node for its status as fast as it is answered. It gets the answers that the rate allows and no more; a client generates
# the same text meanwhile, and is not held.
. "$(dirname "${BASH_SOURCE[0]}")/../system/lib.sh"
model=$fixtures/golden/llama
golden_ids llama "$scratch/ids"
python3 -c 'import zmq, msgpack, cryptography' 2>/dev/null || skip "python3-zmq, python3-msgpack or python3-cryptography is missing"
start_node a "$model" all --log-level warn # at its default limits
wait_ready a
text=("$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --max-tokens 64 --json --join "${address[a]}")
succeeds "${text[@]}"
ids=$(query "$scratch/run.out" 'd["ids"]')
alone=$(query "$scratch/run.out" 'd["timings"]["decode_tok_s"]' 2>/dev/null)
start stranger python3 "$here/../attacks/stranger.py" "${address[a]}" questions 8
for ((i = 0; i < 600; i++)); do grep -q '^begins' "$scratch/stranger.out" && break; pause 0.1; done
for ((i = 0; i < 3; i++)); do
  succeeds "${text[@]}"
  [ "$(query "$scratch/run.out" 'd["ids"]')" = "$ids" ] || fail "the text differs"
done
beside=$(query "$scratch/run.out" 'd["timings"]["decode_tok_s"]' 2>/dev/null)
wait_end stranger 60
read -r answered seconds < <(sed -n 's/^answered \([0-9]*\) in \([0-9.]*\)$/\1 \2/p' "$scratch/stranger.out")
[ "${answered:-0}" -gt 256 ] || fail "the stranger got ${answered:-no} answers"
python3 -c "import sys; sys.exit($answered > 1024 + 256 * $seconds + 64)" || fail "the stranger got $answered answers in $seconds s"
stop_node a
echo "tokens/s alone ${alone:-?}, beside the stranger ${beside:-?}; it got $answered answers in $seconds s"
