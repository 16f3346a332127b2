#!/usr/bin/env bash
# A stranger asks a node for weights at full speed, 64 requests at a time. It gets what the rate allows and no more, a quarter of it
# while the node computes steps; a client generates the same text meanwhile.
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
start stranger python3 "$here/../attacks/stranger.py" "${address[a]}" weights 6
for ((i = 0; i < 600; i++)); do grep -q '^begins' "$scratch/stranger.out" && break; pause 0.1; done
for ((i = 0; i < 3; i++)); do
  succeeds "${text[@]}"
  [ "$(query "$scratch/run.out" 'd["ids"]')" = "$ids" ] || fail "the text differs"
done
beside=$(query "$scratch/run.out" 'd["timings"]["decode_tok_s"]' 2>/dev/null)
wait_end stranger 60
read -r took seconds refused < <(sed -n 's/^took \([0-9]*\) in \([0-9.]*\) and was refused \([0-9]*\)/\1 \2 \3/p' "$scratch/stranger.out")
[ "${took:-0}" -gt 1000000 ] || fail "the stranger got ${took:-nothing}"
[ "$refused" -gt 0 ] || fail "64 requests of one key waited"
python3 -c "import sys; sys.exit($took > 16777216 * $seconds + 4000000)" || fail "the stranger got $took bytes in $seconds s"
stop_node a
echo "tokens/s alone ${alone:-?}, beside the stranger ${beside:-?}; it got $took bytes in $seconds s and was refused $refused times"
