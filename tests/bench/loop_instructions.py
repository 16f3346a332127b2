#!/usr/bin/env python3
"""Counts the instructions of the kernels' innermost loops in machine code: what a group of 32 k, 16 outputs and ROWS rows costs.

usage: loop_instructions.py OBJDUMP FILE.o... [TYPE...]      (kernels_*.c.o of a Release build, with the objdump of their architecture)

Of Q4_1 and Q8_0, or of the types that are named.
"""
import collections
import pathlib
import re
import subprocess
import sys

PRODUCT = re.compile(r"sdot|smmla|smull|vpmaddubsw|vpdpbusd")


def innermost_loop(objdump, file, function):
    """The mnemonics of the shortest loop of the function that multiplies bytes."""
    text = subprocess.run([objdump, "-d", "--no-show-raw-insn", f"--disassemble={function}", file], check=True,
                          capture_output=True, text=True).stdout
    code = [(int(m[1], 16), m[2], m[3]) for m in re.finditer(r"^\s*([0-9a-f]+):\s+(\S+)[ \t]*(.*)", text, re.M)]
    loops = []
    for address, _, operands in code:
        target = re.search(r"\b([0-9a-f]+) <", operands)
        if target and int(target[1], 16) < address:
            loops.append([name for at, name, _ in code if int(target[1], 16) <= at <= address])
    return min((names for names in loops if any(map(PRODUCT.match, names))), key=len)


files = [name for name in sys.argv[2:] if name.endswith(".o")]
types = [name for name in sys.argv[2:] if not name.endswith(".o")] or ["Q4_1", "Q8_0"]
columns = [(name, rows) for name in types for rows in (1, 4)]
print(f"| kernels | {' | '.join(f'{name}, {rows} row' + 's' * (rows > 1) for name, rows in columns)} |\n" + "| --- " * (len(columns) + 1) + "|")
for file in files:
    cells = []
    for name, rows in columns:
        names = innermost_loop(sys.argv[1], file, f"tile_{name}_{rows}")
        products = collections.Counter(name for name in names if PRODUCT.match(name))
        cells.append(f"{len(names)} ({', '.join(f'{n} {name}' for name, n in products.items())})")
    print(f"| {pathlib.Path(file).name.removeprefix('kernels_').split('.')[0]} | {' | '.join(cells)} |")
