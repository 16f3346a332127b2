#!/usr/bin/env python3
"""Mutants: protections that are removed to see that a test misses them. tests/mutants/ROOM.txt holds those of a room:

    [name_of_the_mutant]
    removes: the protection, one sentence
    test: SUITE/TEST                  what fails without the protection
    --- client/chain/hop.c
    -    the lines that stand there, once in the file
    +    the lines that take their place

Lines that begin with a space stay: they show where a line is added, or which of several equal ones is meant. A mutant in several places
has several such pieces, each below its file. What a test may be: patterns of unit tests (`cache/*`; several with spaces between
them; `--jobs 1` behind them), or a command from the root of the repository, as `tests/system/test_chat.sh`. `builds:` names the
targets of other commands. scripts/mutants.sh removes, builds and tests; scripts/check.sh sees that each piece is found and each test
exists.

usage: mutants.py plan [ROOM|NAME|/FILE...]     prints "ID <tab> targets <tab> command" for each (all)
       mutants.py apply ID                      changes the tree; a file that was not changed before
       mutants.py check                         prints what does not hold of any of them
"""
import collections
import fnmatch
import functools
import pathlib
import re
import sys

FOLDER, UNIT = pathlib.Path("tests/mutants"), pathlib.Path("tests/unit")
UNIT_TESTS = re.compile(r"(\w+/[^/\s]+(?: \w+/[^/\s]+)*)( --jobs \d+)?")
Mutant = collections.namedtuple("Mutant", "id name removes test builds pieces")  # pieces: (file, old, new)


class Wrong(Exception):
    """A sentence about a mutant that cannot be used."""


def read(path):
    """The mutants of a file."""
    mutants = []
    for block in re.split(r"^(?=\[)", path.read_text(), flags=re.M)[1:]:
        name, _, rest = block.partition("]\n")
        head, _, body = rest.partition("--- ")
        fields = dict(re.findall(r"^(\w+): (.+)$", head, re.M))
        if not re.fullmatch(r"\[\w+", name) or not body or not fields.keys() <= {"removes", "test", "builds"} or not {"removes", "test"} <= fields.keys():
            raise Wrong(f"{path}: {name}] needs 'removes: ...', 'test: ...' and a file behind '---'")
        pieces = []
        for piece in re.split(r"^--- ", body, flags=re.M):
            lines = [line for line in piece.split("\n")[1:] if line]
            if any(line[0] not in " -+" for line in lines):
                raise Wrong(f"{path}: a line of {name}] begins with none of ' ', '-', '+'")
            old, new = ("".join(line[1:] + "\n" for line in lines if line[0] in signs) for signs in (" -", " +"))
            pieces.append((piece.split("\n")[0].strip(), old, new))
        mutants.append(Mutant(f"{path}:{name[1:]}", name[1:], fields["removes"], fields["test"], fields.get("builds", ""), pieces))
    return mutants


def everything():
    return [mutant for path in sorted(FOLDER.glob("*.txt")) for mutant in read(path)]


def chosen(arguments):
    """Those of rooms, names, and files of mutants that lie elsewhere."""
    if not arguments:
        return everything()
    found = []
    for argument in arguments:
        path = pathlib.Path(argument)
        if not path.is_absolute():
            path = FOLDER / (argument.strip("/").replace("/", "_") + ".txt")
        some = read(path) if path.is_file() else [mutant for mutant in everything() if mutant.name == argument]
        if not some:
            raise Wrong(f"there is no mutant and no room {argument} in {FOLDER}")
        found += some
    return found


def suites_of(path, text):
    """Those of a source with unit tests; one of its name where a list that it includes has the tests."""
    found = re.findall(r"^\s*\w*Test\w*\((?:[^,()]*\*\s*\w+, )?(\w+),", text, re.M)
    return sorted({suite for suite in found if suite != "suite"}) or [path.stem[5:]]


def unit_sources():
    return sorted(UNIT.rglob("test_*.c")) + [pathlib.Path("tests/sim/test_sim.c")]


@functools.cache
def unit_tests():
    """SUITE: [(program, the words of its source and of the lists of tests that it includes)]."""
    suites = collections.defaultdict(list)
    for path in unit_sources():
        text = path.read_text()
        program = "test_" + "_".join(path.relative_to(UNIT if UNIT in path.parents else "tests").parent.parts)
        lists = [pathlib.Path(name).read_text() for name in re.findall(r'#include "(tests/\S+\.h)"', text)]
        words = set(re.findall(r"\w+", "\n".join([text, *lists])))
        for suite in suites_of(path, text):
            suites[suite].append((program, words))
    return suites


def program_of(pattern):
    """The unit program with tests that SUITE/NAME means, or None."""
    suite, name = pattern.split("/")
    return next((p for p, words in unit_tests()[suite] if any(fnmatch.fnmatchcase(word, name) for word in words)), None)


def unit_patterns(mutant):
    match = UNIT_TESTS.fullmatch(mutant.test)
    return (match.group(1).split(), match.group(2) or "") if match else ([], "")


def command(mutant):
    """What is run, and the targets it needs."""
    patterns, options = unit_patterns(mutant)
    if not patterns:
        scripts = re.match(r"(?:SN_BUILD=build |bash )*(tests/(?:system|attacks)/\S+)", mutant.test)
        run = f"bash {mutant.test}" if mutant.test.startswith("tests/") else mutant.test
        return run, mutant.builds or ("swarm swarm-node" if scripts else "")
    programs = [program_of(pattern) or "test_is_missing" for pattern in patterns]
    runs = [f"build/tests/{program}{options} --filter '{pattern}'" for program, pattern in zip(programs, patterns)]
    return " && ".join(runs), mutant.builds or " ".join(dict.fromkeys(programs))


def complaints(mutant):
    """Sentences about what does not hold of a mutant."""
    for file, old, new in mutant.pieces:
        path = pathlib.Path(file)
        times = path.read_text().count(old) if path.is_file() and old else 0
        if times != 1:
            yield f"{mutant.id}: its text stands {times} times in {file}, not once"
        elif ("\n" + path.read_text()).count("\n" + old) != 1:
            yield f"{mutant.id}: its text is not whole lines of {file}"
        if old == new:
            yield f"{mutant.id}: changes nothing in {file}"
    for pattern in unit_patterns(mutant)[0]:
        if not program_of(pattern):
            yield f"{mutant.id}: there is no unit test {pattern}"
    if not unit_patterns(mutant)[0]:
        for script in re.findall(r"\btests/(?:system|attacks)/\w+\.sh", mutant.test):
            if not pathlib.Path(script).exists():
                yield f"{mutant.id}: its test {script} does not exist"
        if not command(mutant)[1]:
            yield f"{mutant.id}: its command needs 'builds: TARGET...'"


def apply(mutant):
    for sentence in complaints(mutant):
        raise Wrong(sentence)
    for file, old, new in mutant.pieces:
        path = pathlib.Path(file)
        path.write_text(path.read_text().replace(old, new))


def main(what, *arguments):
    try:
        if what == "plan":
            for mutant in chosen(arguments):
                run, targets = command(mutant)
                print(mutant.id, targets, run, sep="\t")
        elif what == "check":
            wrong = [sentence for mutant in everything() for sentence in complaints(mutant)]
            print(*wrong, sep="\n", end="\n" if wrong else "")
            return bool(wrong)
        else:
            file, _, name = arguments[0].partition(":")
            apply(next(mutant for mutant in read(pathlib.Path(file)) if mutant.name == name))
    except (Wrong, KeyError, StopIteration) as e:
        print(f"mutants.py: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if sys.argv[1:2] in (["plan"], ["apply"], ["check"]) else __doc__)
