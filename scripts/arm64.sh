#!/usr/bin/env bash
# Cross-builds for AArch64 (ARM servers, Raspberry Pi 4 and 5) into FOLDER (build-arm64), and makes FOLDER/emulated, whose programs
# run here by qemu-user. usage: scripts/arm64.sh [FOLDER [TARGET...]]
# The libraries of that architecture are unpacked once into the cache's folder; nothing of this system is changed but the packages
# of the compiler and of the emulator.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
folder=${1:-build-arm64}
TARGETS=("${@:2}"); [ $# -gt 1 ] || TARGETS=(swarm swarm-node)
need_packages $ARM64_PACKAGES

# The list of packages is part of the folder's name, so that another list makes another folder.
packages="libc6-dev libgcc-12-dev libcriterion-dev libzmq3-dev $(tr ' ' '\n' <<<"$BUILD_PACKAGES" | grep '^lib' | tr '\n' ' ')"
arm64=$cache/arm64-root-$(sha256sum <<<"$packages" | cut -c1-8)
if [ ! -d "$arm64" ]; then
  say "unpacking the libraries of arm64 into $arm64"
  mkdir -p "$cache"
  tmp=$(mktemp -d "$arm64.XXXXXX"); trap 'rm -rf "$tmp"' EXIT
  mmdebstrap --quiet --mode=unshare --arch=arm64 --variant=extract --include="$(tr -s ' ' ',' <<<"${packages% }")" bookworm - 2>"$tmp/log" |
    tar -x --no-same-owner -C "$tmp" --exclude=./dev || { tail -n 5 "$tmp/log" >&2; die "the packages of arm64 could not be unpacked: see above"; }
  mv "$tmp" "$arm64"
fi

build "$folder" -DCMAKE_TOOLCHAIN_FILE=cmake/arm64.cmake -DSN_ARM64_ROOT="$arm64" -DSN_TESTS=ON -DSN_CUDA=OFF ${ARM64_OPTIONS-}
mkdir -p "$folder/emulated"
for program in swarm swarm-node; do
  printf '#!/bin/sh\nexec qemu-aarch64-static -L "%s" "%s/%s" "$@"\n' "$arm64" "$(realpath "$folder")" $program >"$folder/emulated/$program"
  chmod +x "$folder/emulated/$program"
done
echo "$arm64"
