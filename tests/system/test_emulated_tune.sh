#!/usr/bin/env bash
# swarm tune --resume on emulated accelerators, through the programs themselves: blocks at nodes, the client's embedding and LM
# head, and all blocks in the client's process. A training that is killed and resumed gives the same bits as an undisturbed one
# on the same devices; memory of the devices faults when the host touches it, so what is restored to the wrong side ends the
# program. tests/support/ says what emulation does not show.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
emulate
text_model
model=$scratch/model
for i in 1 2 3; do echo "{\"text\": \"7-3-9-$i\"}"; done >"$scratch/data.jsonl"
tune=("$bin/swarm" tune --model "$model" --data "$scratch/data.jsonl" --rank 2 --targets v,down --seq 10
  --virtual-tokens 2 --batch 1 --steps 5 --save-every 1)

# killed_and_resumed NAME OPTION...: trains undisturbed, and again with a kill, and compares the folders. A process that ends
# before it could be killed is started again.
killed_and_resumed() {
  local name=$1 until tries
  shift
  succeeds "${tune[@]}" "$@" --out "$scratch/$name.whole"
  for tries in 1 2 3 4 5; do
    rm -rf "${scratch:?}/$name"
    until=$(($(now_ms) + 120000))
    start tune "${tune[@]}" "$@" --out "$scratch/$name"
    until [ -e "$scratch/$name/step-2" ]; do
      kill -0 "${pid[tune]}" 2>/dev/null || fail "$name: training ended early"
      [ "$(now_ms)" -lt "$until" ] || fail "$name: no checkpoint within two minutes"
      sleep 0.01
    done
    kill -KILL "${pid[tune]}" 2>/dev/null
    wait_end tune 60
    [ -e "$scratch/$name/step-5" ] || break
    [ "$tries" -lt 5 ] || fail "$name: it ended before it was killed"
  done
  succeeds "${tune[@]}" "$@" --resume "$scratch/$name"
  grep -q 'resuming at step [1-4]$' "$scratch/run.err" || fail "$name: it does not say at which step it resumes"
  diff -r "$scratch/$name.whole" "$scratch/$name" >"$scratch/diff.err" || fail "$name differs from an undisturbed run"
}

start_node cuda "$model" 0:2 --device cuda:0
wait_ready cuda
start_node xpu "$model" 2:4 --device xpu:0 --join "${address[cuda]}"
wait_ready xpu
nodes=(--join "${address[cuda]}")
killed_and_resumed nodes "${nodes[@]}"
killed_and_resumed cuda --local all --device cuda:0
killed_and_resumed xpu --local all --device xpu:0 --method deep-prompt

# A training goes on elsewhere: what a checkpoint holds belongs to no device.
cp -r "$scratch/cuda" "$scratch/moved"
rm -r "$scratch/moved/step-5"
succeeds "${tune[@]}" "${nodes[@]}" --device xpu:0 --resume "$scratch/moved"
python3 - "$scratch/cuda/loss.csv" "$scratch/moved/loss.csv" <<'END' || fail "a training that moved from one device to others goes another way"
import sys
a, b = ([float(line.split(",")[1]) for line in open(path).readlines()[1:]] for path in sys.argv[1:])
assert len(a) == len(b) == 5 and all(abs(x - y) < 1e-3 * abs(x) for x, y in zip(a, b)), (a, b)
END
for name in cuda xpu; do
  stop_node "$name"
done
