#!/usr/bin/env bash
# What is bundled finds its libraries, or nothing is delivered: a patchelf that writes something else (Debian 12's does) is
# noticed.
. "$(dirname "$0")/lib.sh"
command -v dpkg-query >/dev/null || { echo "licences of libraries are those of Debian's packages"; exit 77; }
mkdir "$scratch/tools"
printf '#!/bin/sh\nexit 0\n' >"$scratch/tools/patchelf" # leaves the file as it is
chmod +x "$scratch/tools/patchelf"
cp "$bin/swarm" "$scratch/"
PATH=$scratch/tools:$PATH refuses 1 'swarm does not find its libraries' python3 "$here/../../scripts/bundle.py" --lib "$scratch/lib" --licences "$scratch/licences" "$scratch/swarm"
