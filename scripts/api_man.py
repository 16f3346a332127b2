#!/usr/bin/env python3
"""Makes the man pages of section 3 of include/swarm.h, whose comments are their text.

    scripts/api_man.py include/swarm.h VERSION FOLDER

The comment at the top becomes swarm(3). Each part of the header ("/* -- sessions */") becomes a page that has the name of
the part's first type (swarm_session.3), and each function a page that points to it. A page is the part in its order:
declarations, and after them the comment that stands before them. Needs scdoc.
"""
import os
import re
import subprocess
import sys

LITERAL = "```"


def prose(comment):
    """The text of a comment, as scdoc's paragraphs."""
    lines = [re.sub(r"^ ?\* ?", "", line.strip(" ")) for line in comment[2:-2].split("\n")]
    text = "\n".join(line.strip() for line in lines).strip()
    paragraphs = [re.sub(r"([\\*_])", r"\\\1", " ".join(p.split())) for p in re.split(r"\n\n+", text)]
    return "\n\n".join(re.sub(r"^([#.|\[\]-])", r"\\\1", p) for p in paragraphs)


def declaration(m):
    """A function's declaration without SWARM_API, its further lines aligned again."""
    return m[0].removeprefix("SWARM_API ").replace("\n" + " " * len("SWARM_API "), "\n")


def items(part):
    """The part as pairs of a comment and the declarations after it; either may be empty. A blank line ends both."""
    for comment, code in re.findall(r"((?:^/\*(?:[^*]|\*(?!/))*\*/\n)?)((?:^[^/\n].*\n)*)", part, re.M):
        if comment or code:
            yield comment.strip(), re.sub(r"^SWARM_API [^;]*;", declaration, code, flags=re.M).rstrip()


def description(part):
    out = []
    for comment, code in items(part):
        out += [f"{LITERAL}\n{code}\n{LITERAL}"] if code else []
        out += [prose(comment)] if comment else []
    return "\n\n".join(out)


def page(name, version, names, summary, body, see):
    escaped = re.sub(r"_", r"\\_", ", ".join(names))
    return f"""{name}(3) "" "swarm-node {version}"

# NAME

{escaped} - {summary}

# SYNOPSIS

*#include <swarm.h>*

*cc* PROGRAM.c *$(pkg-config --cflags --libs swarm)*

# DESCRIPTION

{body}

# SEE ALSO

{", ".join(f"*{s}*(3)" for s in see)}, *swarm*(1)
"""


def main():
    header, version, folder = sys.argv[1:]
    with open(header, encoding="utf8") as f:
        text = f.read()
    code = text[text.index("#endif\n\n", text.index("define SWARM_API")) : text.rindex("#ifdef __cplusplus")]
    general, *parts = re.split(r"^/\* -- (.*?) \*/$", code, flags=re.M | re.S)
    groups = [(title, part, re.search(r"^typedef struct (swarm_\w+)", part, re.M)[1])
              for title, part in zip(parts[::2], parts[1::2])]
    pages = {}
    functions = lambda part: re.findall(r"^SWARM_API [^(]*?(swarm_\w+)\(", part, re.M)
    overview = "\n\n".join(f"*{name}*(3)\n\t{prose(f'/* {title} */')}" for title, _, name in groups)
    body = prose(re.match(r"/\*.*?\*/", text, re.S)[0]) + "\n\n" + description(general) + "\n\n# PAGES\n\n" + overview
    names = [name for _, _, name in groups]
    pages["swarm"] = page("swarm", version, ["swarm", *functions(general)], "language models over a swarm of nodes", body, names)
    for title, part, name in groups:
        of = [name, *(f for f in functions(part) if f != name)]
        pages[name] = page(name, version, of, title.partition(":")[0], description(part), ["swarm", *(n for n in names if n != name)])
    os.makedirs(folder, exist_ok=True)
    for name, source in pages.items():
        made = subprocess.run(["scdoc"], input=source, capture_output=True, text=True)
        if made.returncode:
            sys.exit(f"scdoc refuses the page {name}: {made.stderr.strip()}")
        with open(os.path.join(folder, f"{name}.3"), "w", encoding="utf8") as f:
            f.write(made.stdout)
    for _, part, name in [("", general, "swarm"), *groups]:
        for function in functions(part):
            if function not in pages:
                with open(os.path.join(folder, f"{function}.3"), "w", encoding="utf8") as f:
                    f.write(f".so man3/{name}.3\n")


main()
