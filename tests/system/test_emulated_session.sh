#!/usr/bin/env bash
# Sessions on emulated accelerators, through the programs themselves: saved and loaded, swapped out while idle, and migrated when
# a node drains; between equal devices with the same text, and from one kind of device to another. Memory of the devices faults
# when the host touches it. tests/support/ says what emulation does not show.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
emulate
text_model
model=$scratch/model
head -c 32 /dev/urandom >"$scratch/key" && chmod 600 "$scratch/key"
generate=("$bin/swarm" generate --model "$model" --ignore-eos --json)
key=(--session-key "$scratch/key")

# text OPTION...: prints the generated ids.
text() { succeeds "${generate[@]}" "$@"; query "$scratch/run.out" 'd["ids"]'; }

start_node cuda "$model" all --device cuda:0 --swap-to host --swap-after 1 --metrics 0
start_node xpu "$model" all --device xpu:0 --swap-to host --swap-after 1 --metrics 0
wait_ready cuda xpu

# Saved on one device, loaded there and on the others.
for device in cuda xpu; do
  at=(--join "${address[$device]}" --only "$device")
  whole=$(text "${at[@]}" --prompt 7-3 --max-tokens 12)
  first=$(text "${at[@]}" --prompt 7-3 --max-tokens 5 "${key[@]}" --save "$scratch/$device.saved")
  for to in "--join ${address[cuda]} --only cuda" "--join ${address[xpu]} --only xpu" "--local all"; do # shellcheck disable=SC2086
    rest=$(text $to --max-tokens 7 "${key[@]}" --load "$scratch/$device.saved")
    [ "$(query "$scratch/run.out" "$first + d['ids']")" = "$whole" ] || fail "saved on $device, loaded with $to: $first, then $rest, instead of $whole"
  done
done

# The session of a client that pauses is swapped out; the client goes on as without the pause.
for device in cuda xpu; do
  at=(--join "${address[$device]}" --only "$device" --prompt 7-3 --max-tokens 40)
  whole=$(text "${at[@]}")
  steps=$(idle_steps $device)
  start client "${generate[@]}" "${at[@]}" --emulate-link 1gbit,50ms # a text of seconds on any machine
  wait_metric $device steps_total $((steps + 1)) 60
  signal client STOP
  wait_metric $device swapped_bytes 1 60
  signal client CONT
  wait_end client 60
  [ $rc = 0 ] || fail "a client whose session was swapped out on $device ended with $rc"
  [ "$(query "$scratch/client.out" 'd["ids"]')" = "$whole" ] || fail "a session that was swapped out on $device gives another text"
done

# The node that has a client's session drains: the session goes to the other one, with an equal device or of another kind, and
# nothing is computed again. Which of the two nodes the client chose, their logs say. The texts are long enough for the client
# to look for the other node several times, as it does each second.
has_opened() { [ "$(grep -c 'session opened' "$scratch/$1.err")" -ge "$2" ]; } # has_opened NODE N: since its start
for run in cuda:0+cuda:1,120 xpu:0+xpu:0,160 cuda:0+xpu:0,120; do
  pair=${run%,*} n=${run#*,}
  for name in "${!pid[@]}"; do stop_node "$name"; done
  start_node a "$model" all --device "${pair%+*}"
  wait_ready a
  start_node b "$model" all --device "${pair#*+}" --join "${address[a]}"
  wait_ready b
  whole=$(text --join "${address[a]}" --prompt 7-3 --max-tokens "$n")
  before_a=$(grep -c 'session opened' "$scratch/a.err") before_b=$(grep -c 'session opened' "$scratch/b.err") # of a slow text both have one
  start client "${generate[@]}" --join "${address[b]}" --prompt 7-3 --max-tokens "$n" --emulate-link 1gbit,20ms
  until=$(($(now_ms) + 60000)) from=
  while [ -z "$from" ]; do
    [ "$(now_ms)" -lt "$until" ] || fail "$pair: no node has a session"
    [ "$(grep -c 'session opened' "$scratch/a.err")" -gt "$before_a" ] && from=a to=b
    [ "$(grep -c 'session opened' "$scratch/b.err")" -gt "$before_b" ] && from=b to=a
    sleep 0.03
  done
  signal client STOP
  opened=$(grep -c 'session opened' "$scratch/$to.err")
  signal $from TERM
  signal client CONT
  wait_until 60 has_opened $to $((opened + 1))
  wait_end client 100
  [ $rc = 0 ] || fail "$pair: generate ended with $rc"
  query "$scratch/client.out" 'd["timings"]["replayed_tokens"], [h["node"].split("@")[0] for h in d["timings"]["hops"]], len(d["ids"])' |
    grep -qx "(0, \['$to'\], $n)" || fail "$pair: the session did not migrate: $(query "$scratch/client.out" 'd["timings"]')"
  [ "$(query "$scratch/client.out" 'd["ids"]')" = "$whole" ] || fail "$pair: another text after the migration"
  wait_end $from 60
  [ $rc = 0 ] || fail "$pair: $from ended with $rc after its drain"
done
for name in "${!pid[@]}"; do stop_node "$name"; done
