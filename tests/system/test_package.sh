#!/usr/bin/env bash
# The Debian packages (programs, library, what is needed to build with it): they are built from the build folder, installed
# into a bare root that holds only the packages that they declare (and what these declare), the programs and one that is
# built with libswarm-dev run there, and after a purge nothing is left.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/bare_root.sh"
. "$(dirname "$0")/hardened.sh"
for tool in cpack dpkg dpkg-deb dpkg-shlibdeps chroot python3; do
  command -v $tool >/dev/null || skip "needs $tool"
done
[ "$(id -u)" = 0 ] || skip "needs root: dpkg and chroot into a bare root"
[ -f "$bin/CPackConfig.cmake" ] || skip "no CPackConfig.cmake in $bin"

root=$scratch/root names=()
(cd "$bin" && cpack -G DEB -B "$scratch/package" -D CPACK_DEBIAN_COMPRESSION_TYPE=gzip) >"$scratch/cpack.err" 2>&1 || fail "cpack failed"
debs=("$scratch"/package/*.deb)

field() { dpkg-deb -f "$deb" "$1"; }
depends=()
for deb in "${debs[@]}"; do
  name=$(field Package)
  case $name in
    swarm-node | libswarm0 | libswarm-dev) ;;
    swarm-node-dht | libswarm0-dht | libswarm-dht-dev) # packages of their own, because the licence differs
      [[ $(field Description) == *GPL-3* ]] || fail "the description of $name does not say that it is under GPL-3"
      [ "$(field Conflicts)" = "${name/-dht/}" ] || fail "$name may be installed beside ${name/-dht/}" ;;
    *) fail "a package is called $name" ;;
  esac
  [[ $name != *-dht || $(field Depends) == *libopendht* ]] || fail "$name does not depend on OpenDHT"
  [ "$(basename "$deb")" = "${name}_$(field Version)_$(dpkg --print-architecture).deb" ] || fail "its file is called $(basename "$deb")"
  for required in Description Section Maintainer Depends; do
    [ -n "$(field $required)" ] || fail "$name has no field $required"
  done
  names+=("$name")
  [[ $name == *-dev ]] || depends+=("$(field Depends)")
done
[ ${#names[@]} = 3 ] || fail "cpack made the packages ${names[*]}"
for name in "${names[@]}"; do case $name in swarm-node*) programs=$name ;; *-dev) development=$name ;; *) library=$name ;; esac; done
deb=$(echo "$scratch/package/${development}"_*)
[[ $(field Depends) == "$library (= "* ]] || fail "$development does not depend on its own version of $library"

bare_root "$root" "$(IFS=,; echo "${depends[*]}")"

# What lies in the root, without dpkg's own records.
listing() { find "$root" -path "$root/var/lib/dpkg" -prune -o -path "$root/var/log" -prune -o -print | sort; }
listing >"$scratch/before"

succeeds dpkg --root="$root" --force-not-root --log=/dev/null -i "${debs[@]}"
succeeds chroot "$root" /usr/bin/swarm-node --help
is_sanitized || hardened "$root"/usr/bin/swarm "$root"/usr/bin/swarm-node "$root"/usr/lib/libswarm.so.0
grep -q -- '--blocks' "$scratch/run.out" || fail "swarm-node --help does not explain --blocks"
succeeds chroot "$root" /usr/bin/swarm --help
grep -q generate "$scratch/run.out" || fail "swarm --help does not name generate"
succeeds chroot "$root" /usr/bin/swarm keygen --out /tmp/id
commands=$(chroot "$root" /usr/bin/swarm --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p')
pages=(swarm swarm-node)
for command in $commands; do pages+=("swarm-$command"); done
[ "${#pages[@]}" -gt 10 ] || fail "swarm --help lists no commands"
for page in "${pages[@]}"; do
  grep -q '^\.SH NAME' "$root/usr/share/man/man1/$page.1" || fail "$page has no man page"
done
for program in swarm swarm-node; do
  bash -c '. "$1" && complete -p "$2"' - "$root/usr/share/bash-completion/completions/$program" $program >/dev/null || fail "no completion of $program"
done
for path in etc/swarm/node.conf usr/lib/systemd/system/swarm-node.service "${names[@]/#/usr/share/doc/}"; do
  [ -d "$root/$path" ] && path=$path/copyright
  [ -s "$root/$path" ] || fail "/$path was not installed"
done
grep -q '^ExecStart=/usr/bin/swarm-node --config /etc/swarm/node.conf' "$root/usr/lib/systemd/system/swarm-node.service" ||
  fail "the unit starts another program than the installed one"

# A program is built with libswarm-dev and runs with libswarm0.
succeeds cc "$root/usr/share/doc/$development/examples/generate.c" -o "$root/tmp/generate" -I"$root/usr/include" -L"$root/usr/lib" -lswarm \
  -Wl,--unresolved-symbols=ignore-in-shared-libs
refuses 2 '^usage: ' chroot "$root" /tmp/generate
refuses 1 '/nowhere' chroot "$root" /tmp/generate /nowhere text
grep -q '^\.SH NAME' "$root/usr/share/man/man3/swarm.3" || fail "swarm.h has no man page"
rm -f "$root/tmp/id" "$root/tmp/generate"

succeeds dpkg --root="$root" --force-not-root --log=/dev/null --purge "${names[@]}"
listing >"$scratch/after"
cmp -s "$scratch/before" "$scratch/after" || fail "a purge leaves: $(comm -13 "$scratch/before" "$scratch/after" | sed "s|$root||" | tr '\n' ' ')"
for name in "${names[@]}"; do
  [ -z "$(find "$root/var/lib/dpkg/info" -name "$name.*")" ] || fail "dpkg still knows files of $name"
done
