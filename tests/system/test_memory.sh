#!/usr/bin/env bash
# A node holds the weights of its own blocks only: resident memory with 10 of 30 blocks compared with all 30.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ -n "${SN_TEST_MODEL:-}" ] || skip "resident memory needs SN_TEST_MODEL"
resident_kib() { awk '/^VmRSS:/ { print $2 }' "/proc/${pid[$1]}/status"; }

# Freed buffers go back to the system at once: otherwise resident memory depends on the order of what was allocated.
export MALLOC_MMAP_THRESHOLD_=131072 MALLOC_TRIM_THRESHOLD_=131072
start_node part "$SN_TEST_MODEL" 10:20
start_node whole "$SN_TEST_MODEL" all
wait_ready part whole

# What a node needed while it measured itself goes back to the system about when it is ready.
until=$(($(now_ms) + 10000))
while true; do
  part=$(resident_kib part) whole=$(resident_kib whole)
  [ $((100 * part)) -ge $((60 * whole)) ] || break
  [ "$(now_ms)" -lt "$until" ] || fail "a third of the blocks takes $((100 * part / whole)) % of the memory of all"
  pause 0.05
done
echo "resident: $((part / 1024)) MiB with 10 blocks, $((whole / 1024)) MiB with 30 ($((100 * part / whole)) %)"
stop_node part
stop_node whole
