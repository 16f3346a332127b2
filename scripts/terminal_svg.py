#!/usr/bin/env python3
"""Runs commands in a pseudo-terminal and draws what they print as an SVG picture, for the documents:

    scripts/terminal_svg.py docs/quickstart.svg 'scripts/quickstart.sh --prompt "The capital of France is" --max-tokens 24'

Each argument after the file is a shell command; it runs in the repository's root and must end by itself. The picture has
the text as it stands at the end: a carriage return begins the line again, "erase line" empties it, styles stay.

    scripts/terminal_svg.py docs/chat.svg --screen FILE

draws a screen that `tmux capture-pane -e -p` wrote to FILE (scripts/captures.sh).
"""
import html
import os
import pty
import re
import subprocess
import sys
import unicodedata

COLUMNS, CHAR_WIDTH, LINE_HEIGHT, MARGIN, BAR = 116, 7.8, 18, 14, 30
ESCAPE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b[^\[]")


def capture(command):
    """What the command prints at a terminal of COLUMNS columns, as text with its escape sequences."""
    primary, secondary = pty.openpty()
    env = dict(os.environ, TERM="xterm", COLUMNS=str(COLUMNS), LINES="50")
    subprocess.run(["stty", "cols", str(COLUMNS), "rows", "50"], stdin=secondary, check=True)
    child = subprocess.Popen(["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=secondary, stderr=secondary, env=env,
                             cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    os.close(secondary)
    chunks = []
    while True:
        try:
            data = os.read(primary, 65536)
        except OSError: # the last writer has closed its end
            break
        if not data:
            break
        chunks.append(data)
    child.wait()
    if child.returncode:
        sys.exit(f"terminal_svg.py: '{command}' ended with {child.returncode}")
    return b"".join(chunks).decode("utf8", "replace")


def styled(style, codes):
    """A style, which is a set of bold, dim, italic, underline, code, after "ESC [ codes m"."""
    on = {"1": "bold", "2": "dim", "3": "italic", "4": "underline", "36": "code"}
    off = {"22": {"bold", "dim"}, "23": {"italic"}, "24": {"underline"}, "39": {"code"}}
    for code in (codes or "0").split(";"):
        style = frozenset() if code in ("", "0") else (style | {on[code]} if code in on else style - off.get(code, set()))
    return style


def render(text):
    """The lines on the screen at the end: lists of (character, style)."""
    lines, at, style = [[]], 0, frozenset()
    i = 0
    while i < len(text):
        m = ESCAPE.match(text, i)
        if m:
            if m.group(2) == "m":
                style = styled(style, m.group(1))
            elif m.group(2) == "K":
                del lines[-1][0 if m.group(1) == "2" else at :]
            i = m.end()
            continue
        c = text[i]
        i += 1
        if c == "\n":
            lines.append([])
            at = 0
        elif c == "\r":
            at = 0
        elif unicodedata.category(c) != "Cc":
            if at >= COLUMNS:
                lines.append([])
                at = 0
            row = lines[-1]
            row.extend([(" ", frozenset())] * (at + 1 - len(row)))
            row[at] = (c, style)
            at += 1
    while lines and not lines[-1]:
        lines.pop()
    return lines


def spans(row):
    """Runs of characters of one style."""
    out = []
    for c, style in row:
        if out and out[-1][1] == style:
            out[-1][0] += c
        else:
            out.append([c, style])
    return out


ATTRIBUTES = {"bold": ' font-weight="bold" fill="#ffffff"', "dim": ' fill="#7d828c"', "italic": ' font-style="italic"',
              "underline": ' text-decoration="underline"', "code": ' fill="#6cc7d8"'}


def svg(lines):
    width, height = COLUMNS * CHAR_WIDTH + 2 * MARGIN, len(lines) * LINE_HEIGHT + BAR + 2 * MARGIN
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">',
           f'<rect width="{width:.0f}" height="{height:.0f}" rx="8" fill="#16181d"/>',
           *(f'<circle cx="{20 + 20 * k}" cy="17" r="6" fill="{c}"/>' for k, c in enumerate(("#ff5f57", "#febc2e", "#28c840"))),
           '<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13" fill="#d6d9de" xml:space="preserve">']
    for n, row in enumerate(lines):
        y, x = BAR + MARGIN + n * LINE_HEIGHT, MARGIN
        for text, style in spans(row):
            if text.strip():
                look = "".join(ATTRIBUTES[s] for s in sorted(style))
                out.append(f'<text x="{x:.1f}" y="{y}" textLength="{len(text) * CHAR_WIDTH:.1f}"{look}>{html.escape(text)}</text>')
            x += len(text) * CHAR_WIDTH
    return "\n".join([*out, "</g>", "</svg>"]) + "\n"


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    lines = []
    if sys.argv[2] == "--screen":
        with open(sys.argv[3], encoding="utf8") as f:
            lines = [*render(f.read()), []]
    for command in [] if lines else sys.argv[2:]:
        lines += [[(c, frozenset({"bold"})) for c in "$ " + command], *render(capture(command)), []]
    with open(sys.argv[1], "w", encoding="utf8") as f:
        f.write(svg(lines[:-1]))


main()
