#!/usr/bin/env bash
# swarm status: which nodes serve which blocks, and which blocks no node serves, once and live.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$fixtures/golden/llama
start_node a "$model" 0:1
wait_ready a
start_node b "$model" 0:3 --join "${address[a]}"
wait_ready b
status=("$bin/swarm" status --join "${address[a]}")
for ((i = 0; i < 600; i++)); do
  succeeds "${status[@]}" --json
  [ "$(query "$scratch/run.out" 'sum(n["answered"] for n in d["nodes"])')" = 2 ] && break
  sleep 0.1
done
[ "$(query "$scratch/run.out" 'd["coverage"][0]["nodes_per_block"], d["coverage"][0]["gaps"]')" = "([2, 1, 1, 0], ['3:4'])" ] ||
  fail "coverage: $(cat "$scratch/run.out")"
[ "$(query "$scratch/run.out" 'all(n["version"] and n["device"] == "cpu" and n["kv_bytes_max"] > 0 and n["rtt_ms"] > 0 and n["state"] == "online" for n in d["nodes"])')" = True ] ||
  fail "the statistics of a node: $(cat "$scratch/run.out")"
[ "$(query "$scratch/run.out" 'len(d["coverage"][0]["tokens_per_s_per_block"])')" = 4 ] || fail "no throughput for each block"
both() { succeeds "${status[@]}"; grep -Eq '^0:1 +2 ' "$scratch/run.out"; } # a node may answer late
wait_until 60 both
grep -Eq '^llama \([0-9a-f]{8}\), 4 blocks$' "$scratch/run.out" || fail "the model has no name: $(cat "$scratch/run.out")"
awk 'length > 120 { exit 1 }' "$scratch/run.out" || fail "lines are longer than 120 columns: $(cat "$scratch/run.out")"
for head in NAME BLOCKS; do # README shows this format
  shown=$(grep -m 1 "^$head .*TOKENS/S" "$here/../../README.md" | tr -s ' ')
  [ "$(grep -m 1 "^$head .*TOKENS/S" "$scratch/run.out" | tr -s ' ')" = "$shown" ] || fail "README shows another format: $shown"
done
grep -Eq '^1:3 +1 ' "$scratch/run.out" && grep -Eq '^3:4 +no node$' "$scratch/run.out" ||
  fail "the table: $(cat "$scratch/run.out")"

# Live: one line of JSON each time; a killed node becomes silent and leaves a gap; an interrupt ends it.
start live "${status[@]}" --json --watch 1
until_lines() {
  local i
  for ((i = 0; i < 1200; i++)); do [ "$(wc -l <"$scratch/live.out")" -ge "$1" ] && return; sleep 0.05; done
  fail "there are not $1 lines: $(cat "$scratch/live.out" "$scratch/live.err")"
}
until_lines 1
kill_node b
b_is_gone() { # a line may have been begun before
  tail -n 1 "$scratch/live.out" >"$scratch/last"
  [ "$(query "$scratch/last" '[n["answered"] for n in d["nodes"] if n["name"] == "b"], d["coverage"][0]["gaps"]' 2>/dev/null)" = "([False], ['1:4'])" ]
}
wait_until 60 b_is_gone
signal live INT
wait_end live 60
[ $rc = 130 ] || fail "an interrupted watch ended with $rc"

# On a terminal it is redrawn in place.
python3 - "${status[@]}" --watch 1 <<'END' || fail "it is not redrawn in place on a terminal"
import os, pty, select, signal, sys, time
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
seen, until = b"", time.time() + 90
while (seen.count(b"\x1b[H\x1b[J") < 2 or seen.count(b"RTT") < 2) and time.time() < until:
    if select.select([fd], [], [], 0.1)[0]:
        seen += os.read(fd, 65536)
os.kill(pid, signal.SIGINT)
while time.time() < until:
    try:
        if select.select([fd], [], [], 0.1)[0] and not os.read(fd, 65536):
            break
    except OSError:
        break
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
assert seen.count(b"\x1b[H\x1b[J") >= 2 and seen.count(b"RTT") >= 2, seen
END
stop_node a
