# A root folder that holds only what some Debian packages declare: for tests of what is installed. Sourced after lib.sh.
# It is made of copies of this machine's packages, so that it needs no network and takes seconds.

# bare_root FOLDER PACKAGES: makes the root of these packages ("NAME, NAME (>= VERSION) | NAME") and what they declare, as
# dash, coreutils and libc-bin, which are essential: maintainer scripts use them without declaring them.
bare_root() {
  local root=$1 folder package packages
  for tool in dpkg chroot python3; do command -v $tool >/dev/null || skip "needs $tool"; done
  [ "$(id -u)" = 0 ] || skip "needs root: chroot into a bare root"
  mkdir -p "$root"
  python3 - "$root" "$2,dash,coreutils,libc-bin" >"$scratch/packages" <<'END' || fail "the packages could not be resolved"
import os, re, sys
root, wanted = sys.argv[1], sys.argv[2]
entries, providers = {}, {}
for text in open("/var/lib/dpkg/status", encoding="utf8").read().split("\n\n"):
    e = dict(re.findall(r"^([A-Za-z-]+): (.*)$", text, re.M))
    if e.get("Status", "").endswith(" installed"):
        entries[e["Package"]] = (e, text)
        for p in re.findall(r"[^ ,()]+(?= *\(|,|$)", e.get("Provides", "")):
            providers.setdefault(p, e["Package"])
def names(field):
    for group in filter(None, (g.strip() for g in field.split(","))):
        options = [re.split(r"[ (:]", o.strip())[0] for o in group.split("|")]
        found = [o if o in entries else providers.get(o) for o in options if o in entries or o in providers]
        if not found:
            sys.exit(f"'{group}' is not installed here")
        yield found[0]
closure, todo = set(), list(names(wanted))
while todo:
    p = todo.pop()
    if p not in closure:
        closure.add(p)
        e = entries[p][0]
        todo += names(",".join(e.get(f, "") for f in ("Depends", "Pre-Depends")))
os.makedirs(root + "/var/lib/dpkg/info"), os.makedirs(root + "/var/lib/dpkg/updates")
open(root + "/var/lib/dpkg/status", "w").write("".join(entries[p][1] + "\n\n" for p in sorted(closure)))
for p in closure:
    print(p if entries[p][0].get("Multi-Arch") != "same" else p + ":" + entries[p][0]["Architecture"])
END
  for folder in bin sbin lib lib64; do mkdir -p "$root/usr/$folder"; ln -s "usr/$folder" "$root/$folder"; done
  mkdir -p "$root/tmp" "$root/dev" "$root/proc"
  mapfile -t packages <"$scratch/packages"
  for package in "${packages[@]}"; do cp "/var/lib/dpkg/info/$package.list" "$root/var/lib/dpkg/info/"; done
  dpkg -L "${packages[@]}" 2>/dev/null | sort -u | grep -v '^/usr/share/\(doc\|man\|locale\|info\|perl\)\|^$' |
    tar -C / -c --no-recursion --ignore-failed-read -T - 2>/dev/null | tar -C "$root" -x --keep-directory-symlink || fail "copying the packages failed"
  chroot "$root" ldconfig # makes its cache, as the library's installation does
}

# in_root FOLDER: root_command becomes the words before a command that runs in the root with /dev and /proc, where the loader reads
# what $ORIGIN is.
# shellcheck disable=SC2016
in_root() {
  root_command=(unshare -m sh -c 'root=$1; shift; mount --bind /proc "$root/proc" && mount --bind /dev "$root/dev" && exec chroot "$root" "$@"' - "$1")
  unshare -m true 2>/dev/null || skip "needs a mount namespace: /proc in a bare root"
}
