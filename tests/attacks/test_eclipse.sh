#!/usr/bin/env bash
# A stranger hands over 2,000 and then 14,600 announcements of invented nodes, which claim to serve all blocks fastest. The node
# takes what the rate of one address allows, about 2,200 of them: more than there are real nodes by far. A client that joins one of
# two real nodes generates the same text over both of them all the while, with and without --only.
. "$(dirname "${BASH_SOURCE[0]}")/../system/lib.sh"
model=$fixtures/golden/llama
golden_ids llama "$scratch/ids"
[ -x "$bin/tests/attack_invent" ] || skip "attack_invent is not built"
start_node a "$model" 0:2 --drain-timeout 0
wait_ready a
start_node b "$model" 2:4 --drain-timeout 0 --join "${address[a]}"
wait_ready b
# Until an answer of b has proven it to a, b is as much a stranger to a client as the invented nodes.
python3 "$here/../attacks/stranger.py" "${address[a]}" proven 2 || { [ $? = 77 ] && skip "needs python3-zmq, python3-msgpack and python3-cryptography"; fail "b was not proven to a"; }
text=("$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --max-tokens 8 --json --join "${address[a]}" --timeout 20)
succeeds "$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --max-tokens 8 --json --local all
ids=$(query "$scratch/run.out" 'd["ids"]')
same_text() { # what is going on, further options
  succeeds "${text[@]}" "${@:2}"
  [ "$(query "$scratch/run.out" 'd["ids"]')" = "$ids" ] || fail "the text differs $1"
}
same_text "before"
for n in 2000 14600; do
  start flood "$bin/tests/attack_invent" "${address[a]}" $n
  same_text "during the flood"
  wait_end flood 60
  grep "invented $n" "$scratch/flood.out" || fail "the flood did not come"
  same_text "in a swarm of $n invented nodes"
  same_text "of nodes that were named" --only a --only b
done

# A crowd of one address asks for pages of this large directory, more than a node gives to all: others get theirs nevertheless.
start crowd python3 "$here/../attacks/stranger.py" "${address[a]}" crowd 12
for ((i = 0; i < 600; i++)); do grep -q '^begins' "$scratch/crowd.out" && break; pause 0.1; done
for _ in 1 2 3; do same_text "beside a crowd that asks for pages"; done
wait_end crowd 100
grep -q '^answers.* error' "$scratch/crowd.out" || fail "the crowd was never refused: $(cat "$scratch/crowd.out")"

# Announced names are refused when they arrive: no program knows such a node, and a few log lines tell.
start named "$bin/tests/attack_invent" "${address[b]}" 400 localhost
wait_end named 60
lines=$(grep -c 'announcement dropped.*localhost:9 has a name' "$scratch/b.err")
[ "$lines" -ge 1 ] && [ "$lines" -le 20 ] || fail "400 names made $lines log lines"
succeeds "$bin/swarm" status --join "${address[b]}" --json
query "$scratch/run.out" 'all("localhost" not in n["address"] for n in d["nodes"])' | grep -qx True || fail "a node with a name is listed"
stop_node b
stop_node a
