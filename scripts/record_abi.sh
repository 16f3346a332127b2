#!/usr/bin/env bash
# The recorded interface of libswarm: what programs that were built with an earlier version rely on. It stands in
# tests/fixtures/abi: libswarm.abi (functions and types, by abidw) and constants (of include/swarm.h).
#
# usage: scripts/record_abi.sh [--check] [LIBRARY] [HEADER] [FOLDER]    (build/libswarm.so, include/swarm.h, tests/fixtures/abi)
# Records the interface of the library, after additions, also in the declarations of the Python package (python_binding.py). It refuses what breaks such programs: a function or constant that is
# gone, a parameter or value that changed. With --check it records nothing, and fails also when an addition was not recorded.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
check=no
if [ "${1:-}" = --check ]; then check=yes; shift; fi
library=${1:-build/libswarm.so} header=${2:-include/swarm.h} folder=${3:-tests/fixtures/abi}
command -v abidw >/dev/null || die "needs abidw and abidiff: install abigail-tools"
[ -f "$library" ] || die "there is no $library: build the target swarm_shared"
scratch=$(mktemp -d); trap 'rm -rf "$scratch"' EXIT

# Only what the header declares, and nothing that depends on the machine or the place of the sources.
abidw --headers-dir "$(dirname "$header")" --drop-private-types --exported-interfaces-only --no-corpus-path --no-comp-dir-path \
  --no-show-locs --no-elf-needed --no-parameter-names "$library" | sed "s,path='[^']*/client/,path='client/," >"$scratch/libswarm.abi"
grep -oE '\bSWARM_[A-Z_]+ = [0-9]+' "$header" | sort >"$scratch/constants"
[ -s "$scratch/constants" ] || die "$header has no constants"

if [ -f "$folder/libswarm.abi" ]; then
  abidiff --no-added-syms "$folder/libswarm.abi" "$scratch/libswarm.abi" >&2 ||
    die "the interface changed in a way that breaks programs: keep the old function beside a new one"
  gone=$(comm -23 "$folder/constants" "$scratch/constants")
  [ -z "$gone" ] || die "constants are gone or have other values: $gone"
fi
if [ $check = yes ]; then
  abidiff "$folder/libswarm.abi" "$scratch/libswarm.abi" >&2 && cmp "$folder/constants" "$scratch/constants" >&2 ||
    die "the interface has additions that are not recorded: scripts/record_abi.sh records them"
else
  mkdir -p "$folder"
  cp "$scratch"/* "$folder"
  python3 scripts/python_binding.py
fi
