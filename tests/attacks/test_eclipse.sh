#!/usr/bin/env bash
# A stranger hands over 2,000 and then 17,000 announcements of invented nodes, which claim to serve all blocks fastest. A client that
# joins one of two real nodes generates the same text over both of them all the while, with and without --only.
. "$(dirname "${BASH_SOURCE[0]}")/../system/lib.sh"
model=$fixtures/golden/llama
golden_ids llama "$scratch/ids"
python=python3
[ -x /usr/bin/python3 ] && python=/usr/bin/python3
$python -c 'import zmq, msgpack, cryptography' 2>/dev/null || skip "python3-zmq, python3-msgpack or python3-cryptography is missing"
start_node a "$model" 0:2 --log-level warn --drain-timeout 0
wait_ready a
start_node b "$model" 2:4 --log-level warn --drain-timeout 0 --join "${address[a]}"
wait_ready b
text=("$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --max-tokens 8 --json --join "${address[a]}" --timeout 20)
succeeds "$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --max-tokens 8 --json --local all
ids=$(query "$scratch/run.out" 'd["ids"]')
same_text() { # what is going on, further options
  succeeds "${text[@]}" "${@:2}"
  [ "$(query "$scratch/run.out" 'd["ids"]')" = "$ids" ] || fail "the text differs $1"
}
same_text "before"
for n in 2000 17000; do
  start flood $python "$here/../attacks/stranger.py" "${address[a]}" invent $n
  same_text "during the flood"
  wait_end flood 60
  grep "invented $n" "$scratch/flood.out" || fail "the flood did not come"
  same_text "in a swarm of $n invented nodes"
  same_text "of nodes that were named" --only a --only b
done
stop_node b
stop_node a
