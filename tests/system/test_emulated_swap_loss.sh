#!/usr/bin/env bash
# A session is swapped out to host memory while the device of its blocks is lost, through the programs themselves: its client
# goes on with the same text when the device is back, and on another node when it is not. On an emulated CUDA device and on an
# emulated XPU.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
emulate
text_model
model=$scratch/model
generate=("$bin/swarm" generate --model "$model" --ignore-eos --json --prompt 7-3 --max-tokens 40 --timeout 100 --max-retries 100)
export CUDA_STAND_IN_STALL=$scratch/stall ZE_TEST_STALL=$scratch/stall # while this file exists, the device does not answer

text() { succeeds "${generate[@]}" "$@"; query "$scratch/run.out" 'd["ids"]'; }

lines() { [ "$(grep -c "$1" "$scratch/$device.err")" -ge "$2" ]; } # lines TEXT N: the node's log has N such lines
# swapped_client: a client whose session has computed steps and is swapped out; it is stopped.
swapped_client() {
  local steps; steps=$(idle_steps $device)
  start client "${generate[@]}" --join "${address[$device]}" --emulate-link 1gbit,50ms # a text of seconds on any machine
  wait_metric $device steps_total $((steps + 1)) 60
  signal client STOP
  wait_metric $device swapped_bytes 1 60
}
ends_with_the_text() { # ends_with_the_text WHERE
  wait_end client 100
  [ $rc = 0 ] || fail "$1: the client ended with $rc"
  [ "$(query "$scratch/client.out" 'd["ids"]')" = "$whole" ] || fail "$1: another text: $(query "$scratch/client.out" 'd["ids"]')"
}

for device in cuda xpu; do
  start_node $device "$model" all --device $device:0 --device-timeout 4s --swap-to host --swap-after 1 --metrics 0
  wait_ready $device
  whole=$(text --join "${address[$device]}")

  swapped_client
  touch "$scratch/stall"
  signal client CONT
  wait_until 60 lines 'device lost' 1
  rm "$scratch/stall"
  ends_with_the_text "after the device came back"
  grep -q 'device works again device='$device:0 "$scratch/$device.err" || fail "the device did not come back"
  lines 'session opened' 3 || fail "the client did not open its session again"

  swapped_client
  start_node other "$model" all --device cpu --join "${address[$device]}"
  wait_ready other
  touch "$scratch/stall"
  signal client CONT
  ends_with_the_text "on another node"
  lines 'device lost' 2 || fail "the device was not lost"
  grep -q 'session opened' "$scratch/other.err" || fail "the client did not go to the other node"
  rm "$scratch/stall"
  for name in "${!pid[@]}"; do stop_node "$name"; done
done
