#!/usr/bin/env python3
"""Makes python/swarmnode/_swarm_h.py, the declarations of include/swarm.h as ctypes: every function, callback and constant.

    scripts/python_binding.py [--check]

With --check it writes nothing and fails when the file is not what it would write. A declaration that it cannot translate
ends it with a sentence. scripts/record_abi.sh runs it, since the recorded interface and this file change together.
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADER, OUT = os.path.join(ROOT, "include/swarm.h"), os.path.join(ROOT, "python/swarmnode/_swarm_h.py")
NUMBERS = {"int": "c_int", "int32_t": "c_int32", "int64_t": "c_int64", "uint64_t": "c_uint64", "size_t": "c_size_t",
           "float": "c_float", "double": "c_double"}


def ctype(declared, enums, callbacks, returns=False, sized=False):
    """The ctypes name of a parameter's or result's type. sized: its length comes beside it, so it may hold NULs."""
    words = re.sub(r"\bconst\b", " ", declared)
    stars, base = words.count("*"), words.replace("*", " ").split()[0]
    if stars == 0:
        if base == "void" and returns:
            return "None"
        if base in callbacks:
            return base
        return "c_int" if base in enums else NUMBERS[base]
    if stars == 1:
        if base == "char":
            return "c_void_p" if sized and returns or "const" not in declared else "c_char_p"
        if base in ("size_t", "double", "int") and not returns:
            return f"POINTER({NUMBERS[base]})"
        return "c_void_p"  # a handle, or an array: numpy and torch give addresses
    if stars == 2:
        return "POINTER(c_void_p)"
    raise KeyError(declared)


def split(parameters):
    return [] if parameters.strip() in ("", "void") else [" ".join(p.split()) for p in parameters.split(",")]


def translate(header):
    text = re.sub(r"/\*.*?\*/", " ", header, flags=re.S)
    enums = dict(re.findall(r"typedef enum (\w+) \{(.*?)\} \w+;", text, re.S))
    constants = re.findall(r"\b(SWARM_[A-Z_]+) = (\d+)", text)
    callbacks, lines = {}, []
    for result, name, parameters in re.findall(r"typedef ([\w ]+?)\(\*(\w+)\)\(([^)]*)\);", text):
        types = [ctype(p, enums, {}) for p in split(parameters)]
        callbacks[name] = f"{name} = CFUNCTYPE({', '.join([ctype(result, enums, {}, returns=True), *types])})"
    functions = re.findall(r"SWARM_API ([\w *]+?)(\w+)\(([^)]*)\);", text)
    if len(functions) != len(re.findall(r"^SWARM_API ", header, re.M)):
        sys.exit(f"{HEADER} has a declaration that this script does not understand")
    for result, name, parameters in functions:
        given = split(parameters)
        sized = any(re.match(r"size_t \*", p) for p in given)
        types = [ctype(p, enums, callbacks) for p in given]
        types = ", ".join(types)
        lines.append(f'    "{name}": ({ctype(result, enums, callbacks, True, sized)}, [{types}]),')
    out = ['"""Declarations of include/swarm.h. Made by scripts/python_binding.py, not by hand."""',
           "# fmt: off", "from ctypes import CFUNCTYPE, POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p",
           "from typing import Any", ""]
    out += [f"{name} = {value}" for name, value in constants] + [""] + list(callbacks.values())
    out += ["", "# name: (result, parameters)", "FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {", *lines, "}", ""]
    used = set(re.findall(r"\bc_\w+|CFUNCTYPE|POINTER", "\n".join(out[3:])))
    out[2] = "from ctypes import " + ", ".join(sorted(used, key=lambda n: (n.islower(), n)))
    return "\n".join(out)


def main():
    with open(HEADER, encoding="utf8") as f:
        made = translate(f.read())
    if sys.argv[1:] == ["--check"]:
        with open(OUT, encoding="utf8") as f:
            if f.read() != made:
                sys.exit("python/swarmnode/_swarm_h.py is not what include/swarm.h declares: scripts/python_binding.py makes it")
        return
    with open(OUT, "w", encoding="utf8") as f:
        f.write(made)


main()
