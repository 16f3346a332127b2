#!/usr/bin/env python3
"""Draws refusals by chance, turns each off, and runs the unit tests that know its file: scripts/draw_mutants.py [--seed N] [-n N] [PATH...]

A refusal is an `if` whose only statement returns sn_fail(...); it is turned off by a condition that is never true. PATH: only those in
these files or folders. The tests are those that quote its sentence, then those that call the file's functions, or else include a header
of its folder, at most --tests of them. scripts/mutants.sh builds and runs what is drawn, in a view of this folder. What SURVIVED is
looked at by a person: a test is mended, the line is doubled elsewhere, or a system test sees it. --list only prints what was drawn."""

import argparse
import functools
import pathlib
import random
import re
import subprocess
import sys
import tempfile

from mutants import suites_of, unit_sources

REFUSAL = re.compile(r"^[ ]*(?:if|else if) \(", re.M)


def closing(text, at):
    """The place of the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if not depth:
            return i
    return len(text)


def refusals(text):
    """(begin, end) of the conditions of refusals."""
    for match in REFUSAL.finditer(text):
        end = closing(text, match.end() - 1)
        if re.match(r"\)\s*return sn_fail\(", text[end : end + 200]):
            yield match.end(), end


@functools.cache
def unit_tests():
    """The sources of unit tests, and their texts."""
    return {path: path.read_text() for path in unit_sources() if "_emulated_" not in path.name}


def quotes(text, end):
    """How often each unit test has three words in a row of the sentence of the refusal whose condition ends here."""
    begin = text.index("sn_fail(", end)
    sentence = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', text[begin : closing(text, begin + len("sn_fail"))]))
    pieces = [piece.split() for piece in re.split(r"%[-+0-9.*]*[a-z]+", sentence)]
    runs = [" ".join(words[i : i + 3]) for words in pieces for i in range(len(words) - 2)]
    return {source: sum(run in test for run in runs) for source, test in unit_tests().items()}


def tests_of(path, text, place, most):
    """Unit tests that quote the sentence, then those that call the file's functions, those of its name and with the most calls first; or
    else those that include a header of its folder."""
    calls = set(re.findall(r"^[a-z].*?[ *](sn_\w+)\(", text, re.M))
    counts = {source: sum(word in calls for word in re.findall(r"\bsn_\w+", test)) for source, test in unit_tests().items()}
    quoted = quotes(text, place[1]) if place else dict.fromkeys(counts, 0)
    known = [source for source in counts if counts[source] or quoted[source]]
    near = [source for source, test in unit_tests().items() if re.search(rf'"{path.parent}/[a-z_]+\.h"', test)]
    return sorted(known or near, key=lambda source: (-quoted[source], path.stem not in source.name, -counts[source]))[:most]


def mutant(path, text, place, sources):
    """An entry as those of tests/mutants (scripts/mutants.py), with as many lines before as make its text stand once in the file."""
    begin, end = place
    number = text.count("\n", 0, begin) + 1
    off = f"{text[:begin]}({text[begin:end]}) && 0{text[end:]}".splitlines()
    lines = text.splitlines()
    last = number + text.count("\n", begin, end)
    first = next(n for n in range(number, 0, -1) if n == 1 or text.count("\n" + "\n".join(lines[n - 1 : last]) + "\n") == 1)
    kept = [" " + line for line in lines[first - 1 : number - 1]]
    changed = ["-" + line for line in lines[number - 1 : last]] + ["+" + line for line in off[number - 1 : last]]
    name = re.sub(r"\W", "_", f"{path}_{number}")
    test = " ".join(f"{suite}/*" for source in sources for suite in suites_of(source, unit_tests()[source]))
    return "\n".join([f"[{name}]", f"removes: {path}:{number}", f"test: {test}", f"--- {path}", *kept, *changed, "", ""])


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("-n", type=int, default=8, help="how many are drawn")
    options.add_argument("--tests", type=int, default=4, help="sources with tests for each of them, at most")
    options.add_argument("--list", action="store_true")
    options.add_argument("paths", nargs="*", default=["base", "blocks", "client", "gateway", "kvcache", "model", "net", "node", "sharing", "text"])
    args = options.parse_args()
    files = subprocess.run(["git", "ls-files", "--", *args.paths], capture_output=True, text=True, check=True).stdout.split()
    texts = {pathlib.Path(f): pathlib.Path(f).read_text() for f in files if f.endswith(".c")}
    found = [(path, place) for path, text in texts.items() if tests_of(path, text, None, 1) for place in refusals(text)]
    drawn = random.Random(args.seed).sample(found, min(args.n, len(found)))
    print(f"{len(drawn)} of {len(found)} refusals, seed {args.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "drawn.txt"
        for path, place in drawn:
            text = texts[path]
            sources = tests_of(path, text, place, args.tests)
            line = text.count("\n", 0, place[0]) + 1
            print(f"  {path}:{line}: {' '.join(text[place[0] : place[1]].split())[:90]}: {' '.join(s.stem for s in sources)}", flush=True)
            with file.open("a") as out:
                out.write(mutant(path, text, place, sources))
        return 0 if args.list or not drawn else subprocess.run(["scripts/mutants.sh", file], check=False).returncode


sys.exit(main())
