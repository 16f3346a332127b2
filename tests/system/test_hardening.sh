#!/usr/bin/env bash
# The built programs and the library have what a distribution protects its programs with. test_package, test_tarball and
# test_python_wheel look at what they ship.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/hardened.sh"
! is_sanitized || skip "a build with sanitizers has their checks instead"
hardened "$bin/swarm" "$bin/swarm-node"
[ ! -f "$bin/libswarm.so" ] || hardened "$(realpath "$bin/libswarm.so")"
