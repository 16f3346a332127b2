#!/usr/bin/env bash
# One stranger with 16 sessions that decode, one with prompts, then eight with prompts compute all the time at a node. A client generates
# the same text meanwhile, and the strangers go on. What the client keeps of its speed is counted in virtual time by
# tests/unit/node/engine/test_client_shares.c, and measured in docs/BENCHMARKS.md.
. "$(dirname "${BASH_SOURCE[0]}")/attacked.sh"
attacked 64
# beside KEYS SESSIONS ROWS
beside() {
  WIDTH=64 TOKENS=256 KEYS=$1 SESSIONS=$2 ROWS=$3 start stranger python3 "$here/../attacks/stranger.py" "${address[a]}" greedy 6
  for ((i = 0; i < 600; i++)); do grep -q '^begins' "$scratch/stranger.out" && break; pause 0.1; done
  for ((i = 0; i < 3; i++)); do honest "strangers: $*"; done
  wait_end stranger 60
  local rows; rows=$(sed -n 's/^computed \([0-9]*\) rows.*/\1/p' "$scratch/stranger.out")
  [ "${rows:-0}" -gt 1000 ] || fail "the strangers computed ${rows:-no} rows: $(cat "$scratch/stranger.out" "$scratch/stranger.err")"
}
beside 1 16 1
beside 1 4 256
beside 8 2 256
stop_node a
