#!/usr/bin/env bash
# Texts over slow links of real TCP (tests/support/wan), with loss: the cable of a node is pulled, of which another is known; then the
# client's own. The text is that of one machine, and nobody is blamed for the client's cable. Then with windows of draft tokens under way,
# and jitter of half a round trip.
. "$(dirname "${BASH_SOURCE[0]}")/../support/wan/wan.sh"
model=$fixtures/golden/llama
golden_ids llama "$scratch/ids" 8
generate=("$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --ignore-eos --json --max-tokens 60)
succeeds "${generate[@]}" --local all
expected=$(query "$scratch/run.out" 'd["ids"]')
wan 5
link rate 100
link rtt 40
link jitter 10
start_on 2 a "$model" 0:1
wait_ready a
start_on 3 b "$model" 1:3 --join 10.99.0.2:7001
start_on 4 c "$model" 3:4 --join 10.99.0.2:7001
start_on 5 d "$model" 1:3 --join 10.99.0.2:7001
wait_ready b c d

opened() { cat "$scratch/b.err" "$scratch/d.err" | grep -c 'session opened'; }
is_open() { [ "$(opened)" -gt "$before" ]; }
# begin NAME [option...]: begins a text on machine 1, and waits until it has a session for a second. middle: the machine of its middle.
begin() {
  local name=$1 at_b
  shift
  before=$(opened) at_b=$(grep -c 'session opened' "$scratch/b.err")
  start "$name" ip netns exec wan1 timeout -k 2 150 "${generate[@]}" --join 10.99.0.2:7001 --timeout 100 --log-level info "$@"
  wait_until 60 is_open
  middle=5
  [ "$(grep -c 'session opened' "$scratch/b.err")" = "$at_b" ] || middle=3
  pause 1
  kill -0 "${pid[$name]}" 2>/dev/null || fail "the text was complete before the cable could be pulled"
}
ends_as_expected() {
  wait_end "$1" 150
  [ $rc = 0 ] || fail "exit code $rc: $1"
  [ "$(query "$scratch/$1.out" 'd["ids"]')" = "$expected" ] || fail "another text: $1"
  grep -q 'fell silent' "$scratch/$1.err" || fail "the silence was not noticed: $1"
}

link loss 1
for push in '' --push; do
  begin node$push $push
  link down $middle
  ends_as_expected node$push
  grep -q 'node banned' "$scratch/node$push.err" || fail "the node behind the pulled cable is not avoided"
  link up $middle
done
link loss 0
for push in '' --push; do
  begin own$push $push
  link down 1
  pause 4
  link up 1
  ends_as_expected own$push
  ! grep -Eq 'node banned|blocks replaced' "$scratch/own$push.err" || fail "a node is blamed for the client's own cable"
done

# A made model, drafted by a copy with other scales: most tokens are right, and some windows are given up.
for name in a b c d; do kill_node $name; done
model=$scratch/made.gguf
python3 "$here/../bench/synthetic_model.py" "$model" --shape tiny --type Q8_0 --blocks 4
python3 "$here/../bench/noisy_copy.py" "$model" 0.01 "$scratch/copy.gguf"
generate=("$bin/swarm" generate --model "$model" --prompt made --ignore-eos --json --max-tokens 400 --temperature 1 --seed 1)
succeeds "${generate[@]}" --local all
expected=$(query "$scratch/run.out" 'd["ids"]')
link jitter 20
start_on 2 a "$model" 0:1
wait_ready a
start_on 3 b "$model" 1:3 --join 10.99.0.2:7001
start_on 4 c "$model" 3:4 --join 10.99.0.2:7001
start_on 5 d "$model" 1:3 --join 10.99.0.2:7001
wait_ready b c d
for push in '' --push; do
  begin ahead$push $push --draft-model "$scratch/copy.gguf"
  link down $middle
  ends_as_expected ahead$push
  query "$scratch/ahead$push.out" 'd["timings"]["ahead"] > 0 and d["timings"]["accepted"] < d["timings"]["judged"] < d["timings"]["drafted"]' |
    grep -qx True || fail "no windows were under way: $(tail -c 900 "$scratch/ahead$push.out")"
  link up $middle
done
exit 0
