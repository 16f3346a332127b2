#!/usr/bin/env bash
# A device that does not answer, through the programs themselves: it is given up after --device-timeout, the node announces the
# blocks of its other device and serves them, says so once, tries the device again, and takes its blocks back.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
emulate
text_model
model=$scratch/model
generate=("$bin/swarm" generate --model "$model" --ignore-eos --json --prompt 7-3 --max-tokens 8)
export CUDA_STAND_IN_STALL=$scratch/stall # while this file exists, the device does not answer

text() { succeeds "${generate[@]}" "$@"; query "$scratch/run.out" 'd["ids"]'; }

# blocks NAME: "state first:end", as the node announces it.
blocks() {
  "$bin/swarm" status --join "${address[plain]}" --json >"$scratch/status.out" || fail "no status"
  query "$scratch/status.out" "[n['state'] + ' ' + n['blocks'] for n in d['nodes'] if n['name'] == '$1'][0]"
}

start_node plain "$model" all --device cpu
wait_ready plain
start_node cuda "$model" all --device cpu,cuda:0 --device-map 0:1=cuda:0,1:4=cpu --device-timeout 4s --metrics 0 --join "${address[plain]}"
wait_ready cuda
succeeds "$bin/swarm" status --join "${address[plain]}"
[ "$(grep -c 'computes on' "$scratch/run.out")" = 1 ] && grep -Eq '^ +computes on (cpu,cuda:0|cuda:0,cpu)$' "$scratch/run.out" || fail "the devices are not shown: $(cat "$scratch/run.out")"
whole=$(text --join "${address[cuda]}" --only cuda)
expected=$(text --join "${address[plain]}" --only plain)

touch "$scratch/stall"
run "${generate[@]}" --join "${address[cuda]}" --only cuda --timeout 10
[ $rc != 0 ] || fail "a text was generated on a device that does not answer"
wait_until 60 grep -q 'device lost' "$scratch/cuda.err"
grep -q 'device lost device=cuda:0 blocks=1:4 text=.*did not answer within 4000 ms' "$scratch/cuda.err" ||
  fail "the log does not say that the device is lost"
announces() { [ "$(blocks cuda)" = "online $1" ]; }
wait_until 60 announces 1:4
[ "$(metric cuda lost_devices)" = 1 ] || fail "the metrics page shows $(metric cuda lost_devices) lost devices"
[ "$(text --join "${address[cuda]}")" = "$expected" ] || fail "another text without the device"

rm "$scratch/stall"
wait_until 60 announces 0:4
[ "$(text --join "${address[cuda]}" --only cuda)" = "$whole" ] || fail "another text after the device came back"
[ "$(metric cuda lost_devices)" = 0 ] || fail "the metrics page still shows a lost device"
[ "$(grep -c 'device lost' "$scratch/cuda.err")" = 1 ] || fail "the loss was logged more than once"
grep -q 'device works again device=cuda:0' "$scratch/cuda.err" || fail "the log does not say that the device is back"
for name in "${!pid[@]}"; do stop_node "$name"; done
