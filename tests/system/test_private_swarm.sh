#!/usr/bin/env bash
# A private swarm of real processes: with the key everything works, without it every request is refused.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$fixtures/golden/llama
golden_ids llama "$scratch/ids"
text=("$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --max-tokens 8 --json)
for name in ours theirs; do succeeds "$bin/swarm" keygen --swarm-key "$scratch/$name.key"; done
refuses 2 "never overwritten" "$bin/swarm" keygen --swarm-key "$scratch/ours.key"
refuses 2 "give --out FILE" "$bin/swarm" keygen

start_three "$model" --swarm-key "$scratch/ours.key"
succeeds "${text[@]}" --local all
ids=$(query "$scratch/run.out" 'd["ids"]')
succeeds "${text[@]}" --join "${address[b]}" --swarm-key "$scratch/ours.key" --push
[ "$(query "$scratch/run.out" 'd["ids"]')" = "$ids" ] || fail "the text of members differs"
refuses 2 "this swarm is private" "${text[@]}" --join "${address[a]}"
refuses 2 "this swarm is private" "$bin/swarm" status --join "${address[a]}"
refuses 1 "no node answered" "${text[@]}" --timeout 2 --join "${address[a]}" --swarm-key "$scratch/theirs.key"
chmod 644 "$scratch/ours.key"
refuses 2 "read or written by others" "${text[@]}" --join "${address[a]}" --swarm-key "$scratch/ours.key"
stop_three
