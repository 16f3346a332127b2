# What the tests of the programs share. Sourced, not run. A test is a bash script test_X.sh that exits 0, or 1 with what was
# wrong, or 77 with why it was skipped. Everything runs on 127.0.0.1; every process is ended by its id; every wait has a limit, one that no machine
# reaches by being slow: several of these run at once.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
fixtures=$here/../fixtures
bin=${SN_BUILD:-$here/../../build} # the folder that holds the programs
scratch=$(mktemp -d)
declare -A pid address
rc=0

fail() { # the cause comes last: the end of a long output is what is read
  for log in "$scratch"/*.err; do [ -s "$log" ] && { echo "--- $(basename "$log")"; tail -15 "$log"; } >&2; done
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}
skip() { echo "$*"; exit 77; }

cleanup() {
  trap - EXIT
  end_all
  rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

[ -x "$bin/swarm" ] && [ -x "$bin/swarm-node" ] || skip "the programs are not built in $bin"

now_ms() { local t=${EPOCHREALTIME/[.,]/}; echo $((t / 1000)); }

# start NAME COMMAND...: in the background; its words go to NAME.out and NAME.err.
start() {
  local name=$1
  shift
  rm -f "$scratch/$name.out" # of an earlier one of this name, which would be read before the new one is made
  "$@" >"$scratch/$name.out" 2>"$scratch/$name.err" </dev/null &
  pid[$name]=$!
  while [ "/proc/$!/exe" -ef /proc/$$/exe ]; do sleep 0.001; done # until it is the command, not this shell's twin
}

# start_node NAME MODEL BLOCKS [option...]: at a port of its own.
start_node() {
  local name=$1 model=$2 blocks=$3
  shift 3
  start "$name" "$bin/swarm-node" --model "$model" --blocks "$blocks" --name "$name" --threads 1 \
    --listen tcp://127.0.0.1:0 --kv-memory 64MiB "$@"
}

# wait_ready NAME...: until each has said where it listens; address[NAME] is that.
wait_ready() {
  local name until
  for name; do
    until=$(($(now_ms) + 60000))
    until grep -q '^ready:' "$scratch/$name.out" 2>/dev/null; do
      kill -0 "${pid[$name]}" 2>/dev/null || fail "$name did not start"
      [ "$(now_ms)" -lt "$until" ] || fail "$name was not ready within a minute"
      sleep 0.01
    done
    address[$name]=$(sed -n 's/^ready: address=\([^ ]*\).*/\1/p' "$scratch/$name.out")
  done
}

# wait_end NAME SECONDS: until it has ended; rc is its exit code.
wait_end() {
  local until=$(($(now_ms) + $2 * 1000))
  while kill -0 "${pid[$1]}" 2>/dev/null; do
    [ "$(now_ms)" -lt "$until" ] || fail "$1 had not ended after $2 seconds"
    sleep 0.01
  done
  wait "${pid[$1]}" 2>/dev/null # the shell says who was killed
  rc=$?
  unset "pid[$1]"
}

signal() { kill "-$2" "${pid[$1]}" 2>/dev/null || fail "$1 is not running any more"; }
stop_node() { signal "$1" TERM; wait_end "$1" 60; [ $rc = 0 ] || fail "$1 left with $rc instead of 0"; }
kill_node() { signal "$1" KILL; wait_end "$1" 60; }

# end_all: whatever still runs, without asking.
end_all() {
  local name
  for name in slow "${!pid[@]}"; do
    [ -n "${pid[$name]:-}" ] || continue
    kill -KILL "${pid[$name]}" 2>/dev/null
    wait "${pid[$name]}" 2>/dev/null
    unset "pid[$name]"
  done
}

# start_three MODEL [option...]: nodes a, b and c with its four blocks between them; a is joined by the others.
start_three() {
  local model=$1
  shift
  start_node a "$model" 0:1 "$@"
  wait_ready a
  start_node b "$model" 1:3 --join "${address[a]}" "$@"
  start_node c "$model" 3:4 --join "${address[a]}" "$@"
  wait_ready b c
}
stop_three() { local name; for name in a b c; do stop_node "$name"; done; }

# run COMMAND...: waits two minutes at most; rc, $scratch/run.out, $scratch/run.err.
run() {
  timeout -k 2 120 "$@" >"$scratch/run.out" 2>"$scratch/run.err" </dev/null
  rc=$?
}
succeeds() { run "$@"; [ $rc = 0 ] || fail "exit code $rc: $*"; }
# refuses CODE WORDS COMMAND...: ends with the code, and one of its last words on stderr is as expected (a regular expression).
refuses() {
  local code=$1 words=$2
  shift 2
  run "$@"
  [ $rc = "$code" ] || fail "exit code $rc, not $code: $*"
  tail -n 1 "$scratch/run.err" | grep -Eq "$words" || fail "its last line does not say '$words': $*"
}

# query FILE EXPRESSION: a Python expression about the JSON document d.
query() { python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$1" "$2"; }

# golden_ids MODEL FILE [N]: the first N tokens of a fixture's reference as --ids-file takes them.
golden_ids() {
  python3 - "$fixtures/golden/$1/golden.safetensors" "$2" "${3:-24}" <<'END'
import json, struct, sys
with open(sys.argv[1], "rb") as f:
    header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    begin, end = header["input_ids"]["data_offsets"]
    f.seek(begin, 1)
    ids = struct.unpack("<%dq" % ((end - begin) // 8), f.read(end - begin))
json.dump((list(ids) * 100)[: int(sys.argv[3])], open(sys.argv[2], "w"))
END
}

# slow NAME: lets a node work for a few milliseconds at a time, so that a small model takes seconds. Ends with the node.
slow() {
  local victim=${pid[$1]}
  (while kill -STOP "$victim"; do sleep 0.05; kill -CONT "$victim"; sleep 0.001; done) 2>/dev/null &
  pid[slow]=$!
}
