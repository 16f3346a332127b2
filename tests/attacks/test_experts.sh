#!/usr/bin/env bash
# A stranger asks a node with a part of the experts for these at full speed, 512 rows at a time, 64 requests at a time. It has as many in
# the engine as one key may, and is refused the others. A client of the group writes the same ids meanwhile.
. "$(dirname "${BASH_SOURCE[0]}")/../system/lib.sh"
python3 -c 'import zmq, msgpack, cryptography' 2>/dev/null || skip "python3-zmq, python3-msgpack or python3-cryptography is missing"
mixture=$fixtures/golden/deepseek_v3
golden_ids deepseek_v3 "$scratch/ids"
start_node a "$mixture" 0:4 --experts 0:4 --metrics 0 --log-level warn
wait_ready a
start_node b "$mixture" 0:4 --experts 4:8 --metrics 0 --log-level warn --join "${address[a]}"
wait_ready b
complete() { [ "$(metric "$1" experts_missing)" = 0 ]; }
for node in a b; do wait_until 60 complete $node; done
text=("$bin/swarm" generate --model "$mixture" --ids-file "$scratch/ids" --max-tokens 64 --json)
succeeds "${text[@]}" --local all
ids=$(query "$scratch/run.out" 'd["ids"]')
start stranger python3 "$here/../attacks/stranger.py" "${address[a]}" experts 5
for ((i = 0; i < 600; i++)); do grep -q '^begins' "$scratch/stranger.out" && break; pause 0.1; done
for node in a b a; do
  succeeds "${text[@]}" --join "${address[a]}" --only $node
  [ "$(query "$scratch/run.out" 'd["ids"]')" = "$ids" ] || fail "the text of $node differs"
done
wait_end stranger 60
said=$(tail -n 1 "$scratch/stranger.out")
read -r computed refused < <(sed -n 's/^was answered \([0-9]*\) times and refused \([0-9]*\)/\1 \2/p' <<<"$said")
echo "the stranger $said; tokens/s beside it $(query "$scratch/run.out" 'd["timings"]["decode_tok_s"]')"
[ "${computed:-0}" -gt 0 ] || fail "the stranger got ${computed:-no} answers"
[ "${refused:-0}" -gt 0 ] || fail "64 requests of one key waited"
[ "$(metric a expert_holders_dropped_total)" = 0 ] && [ "$(metric b expert_holders_dropped_total)" = 0 ] || fail "a holder was given up"
stop_node b
stop_node a
