#!/usr/bin/env bash
# The built programs and the library have what a distribution protects its programs with. test_package, test_tarball and
# test_python_wheel look at what they ship.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/hardened.sh"
! is_sanitized || skip "a build with sanitizers has their checks instead"
hardened "$bin/swarm" "$bin/swarm-node"
[ ! -f "$bin/libswarm.so" ] || hardened "$(realpath "$bin/libswarm.so")"

# Programs, which hold keys, leave no core dump, unless their owner looks for a fault.
ulimit -c unlimited 2>/dev/null || { echo "not tested: core dumps (they are forbidden here)"; exit 0; }
core_limit() { awk '/^Max core file size/ { print $5, $6 }' "/proc/${pid[$1]}/limits"; }
start_node a "$fixtures/golden/llama" all
wait_ready a
[ "$(core_limit a)" = "0 0" ] || fail "swarm-node may leave a core dump: $(core_limit a)"
stop_node a
SWARM_DUMPABLE=1 start_node b "$fixtures/golden/llama" all
wait_ready b
[ "$(core_limit b)" = "unlimited unlimited" ] || fail "with SWARM_DUMPABLE=1 swarm-node may leave no core dump: $(core_limit b)"
golden_ids llama "$scratch/ids"
start waiting "$bin/swarm" generate --model "$fixtures/golden/llama" --join 127.0.0.1:9 --timeout 60s --ids-file "$scratch/ids"
forbids() { [ "$(core_limit waiting)" = "0 0" ]; } # once it has begun
wait_until 30 forbids
kill_node waiting
stop_node b
