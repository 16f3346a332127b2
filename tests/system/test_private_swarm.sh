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

# Another key: one sentence that names it, at once, and not, after the timeout, a doubt about the address.
for wrong in "${text[*]}" "$bin/swarm status"; do
  refuses 2 "has not proven that it holds this swarm's key: give --swarm-key" $wrong --timeout 60 --join "${address[a]}" --swarm-key "$scratch/theirs.key"
  [ "$(grep -c 'bad message' "$scratch/run.err")" -le 1 ] || fail "the log repeats itself: $(cat "$scratch/run.err")"
done
refuses 2 "this swarm is private" "${text[@]}" --join "${address[a]}" --join "${address[b]}"
succeeds "${text[@]}" --join "${address[a]}" --join 127.0.0.1:1 --swarm-key "$scratch/ours.key"

# A node with another key, or without one, says that it is alone: on its ready line, in its log, in its status.
start_node stranger "$model" all --join "${address[a]}" --swarm-key "$scratch/theirs.key"
start_node keyless "$model" all --join "${address[a]}"
wait_ready stranger keyless
for name in stranger keyless; do
  grep -q '^ready:.* joined=0/1$' "$scratch/$name.out" || fail "$name does not say that it is alone: $(cat "$scratch/$name.out")"
  until grep -q 'warn  no joined node answers.*--swarm-key' "$scratch/$name.err"; do
    kill -0 "${pid[$name]}" || fail "$name has ended"
    sleep 0.1
  done
done
succeeds "$bin/swarm" status --join "${address[keyless]}"
grep -q 'no node answers at the 1 address that it joined' "$scratch/run.out" || fail "status: $(cat "$scratch/run.out")"
succeeds "$bin/swarm" status --join "${address[b]}" --swarm-key "$scratch/ours.key"
grep -q 'no node answers' "$scratch/run.out" && fail "a node that joined counts as alone: $(cat "$scratch/run.out")"
grep -q "no joined node answers" "$scratch/b.err" && fail "a node that joined says that it is alone"
stop_node stranger
stop_node keyless
chmod 644 "$scratch/ours.key"
refuses 2 "read or written by others" "${text[@]}" --join "${address[a]}" --swarm-key "$scratch/ours.key"
stop_three
