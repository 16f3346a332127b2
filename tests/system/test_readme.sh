#!/usr/bin/env bash
# README's sample outputs are what the programs print: four nodes' status but for speeds, times, memory, ids and addresses, and the
# hash of a text, which is the same when a node is killed in the middle of it.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=${SN_TEST_MODEL:-}
[ -n "$model" ] || skip "the real model could not be fetched"
readme=$here/../../README.md
start_node attic "$model" 0:10
wait_ready attic
for node in 'cellar 10:20' 'garage 20:30' 'office 10:30'; do
  # shellcheck disable=SC2086 # name and blocks
  set -- $node
  start_node "$1" "$model" "$2" --join "${address[attic]}"
done
wait_ready cellar garage office

# The block of README from its line with this command on, up to the empty or closing line; of the program's output the same.
sample() { awk -v command="$1" 'index($0, "$ " command) { on = 1; next } on && (/^```/ || /^\$ /) { exit } on' "$readme"; }
# Each line without what differs from run to run: heading and model as they are, of a node name, blocks and state, of blocks their nodes.
comparable() {
  awk '/^NAME|^BLOCKS/ { part = $1; print; next } part == "NAME" && NF { print $1, $3, $4 } part == "BLOCKS" && NF { print $1, $2 } !part' |
    sed 's/ *$//' | sort
}
four() { "$bin/swarm" status -j "${address[attic]}" >"$scratch/status" 2>/dev/null && [ "$(grep -c ' online ' "$scratch/status")" = 4 ]; }
wait_until 120 four
sample "swarm status" | comparable >"$scratch/want"
comparable <"$scratch/status" >"$scratch/got"
[ "$(wc -l <"$scratch/want")" = 10 ] || fail "README's sample of swarm status was not found: $(cat "$scratch/want")"
diff "$scratch/want" "$scratch/got" || fail "README shows another status than the program"

generate() { "$bin/swarm" generate -m "$model" "$@" -p "Once upon a time" -n 300 --ignore-eos; }
hash=$(sample "swarm generate" | head -1)
[ "$(generate --local all 2>/dev/null | sha256sum)" = "$hash" ] || fail "README has another hash of the text: '$hash'"
sample '(sleep 1; kill' | grep -qxF "$hash" || fail "README's hash beside a node's death is another one"
# The link gives the test time to kill.
start text "$bin/swarm" generate --emulate-link 1gbit,3ms -m "$model" -j "${address[attic]}" -p "Once upon a time" -n 300 --ignore-eos
wait_until 120 [ -s "$scratch/text.out" ]
# The node behind attic on its route is the one that has its session.
victim=cellar
"$bin/swarm" status -j "${address[attic]}" 2>/dev/null | grep -q '^office .* [1-9][0-9]*/64' && victim=office
kill_node $victim
wait_end text 300
[ $rc = 0 ] || fail "the text ended with $rc when a node was killed"
grep -q 'nodes replaced' "$scratch/text.err" || fail "no node was replaced: $(cat "$scratch/text.err")"
[ "$(sha256sum <"$scratch/text.out")" = "$hash" ] || fail "the text is another one when a node is killed"
