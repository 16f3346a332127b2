#!/usr/bin/env python3
"""Writes what the documents say twice with the sources: between `<!-- made: NAME -->` and `<!-- end -->` of a page.

    scripts/make_docs.py [--check]

docs/PROTOCOL.md has the messages of net/message.h, docs/SECURITY.md a table of limits,
docs/ARCHITECTURE.md the rooms and their picture. With --check it writes nothing and fails when a page is not what it would write
(scripts/check.py runs that).
"""
import os
import re
import sys

import docs_limits
import docs_messages
import docs_rooms

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def filled(page, text, parts):
    """The page with each part between its markers. A part without markers, or markers without a part, end the program."""
    def fill(m):
        if m.group(1) not in parts:
            sys.exit(f"{page}: nothing is made for the marker '{m.group(1)}' (scripts/make_docs.py)")
        return f"<!-- made: {m.group(1)} -->\n\n{parts.pop(m.group(1)).strip()}\n\n<!-- end -->"

    text = re.sub(r"<!-- made: (.*?) -->\n.*?<!-- end -->", fill, text, flags=re.S)
    if parts:
        sys.exit(f"{page} has no marker '<!-- made: {next(iter(parts))} -->' (scripts/make_docs.py)")
    return text


def main():
    pages = {"docs/PROTOCOL.md": docs_messages.sections() | {"messages with a tensor": docs_messages.with_tensor()},
             "docs/SECURITY.md": {"limits": docs_limits.table()},
             "docs/ARCHITECTURE.md": {"rooms": docs_rooms.table()}, "docs/rooms.svg": docs_rooms.picture()}
    stale = []
    for page, parts in pages.items():
        path = os.path.join(ROOT, page)
        text = ""
        if os.path.exists(path):
            with open(path, encoding="utf8") as f:
                text = f.read()
        new = parts if isinstance(parts, str) else filled(page, text, parts)
        if new != text:
            stale.append(page)
            if "--check" not in sys.argv:
                with open(path, "w", encoding="utf8") as f:
                    f.write(new)
    if "--check" in sys.argv and stale:
        sys.exit(f"{', '.join(stale)} is not what the sources say: run scripts/make_docs.py")


main()
