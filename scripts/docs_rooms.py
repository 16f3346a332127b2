"""The rooms of scripts/check.py for docs/ARCHITECTURE.md: a table of who includes whom, and a picture of the order."""
import html

from check import ROOMS

WHAT = {
    "base": "errors, checked sizes, hashes, files, clock, log, queues",
    "include": "swarm.h, the C API of libswarm",
    "device": "memory, work, operations of a block; the guard",
    "device/cpu": "C, AVX2, AVX-512, AMX, NEON",
    "device/cuda": "NVIDIA GPUs",
    "device/xpu": "Intel GPUs",
    "model": "what a model is: files, families",
    "text": "the text around a model",
    "text/tokenizer": "texts to token ids and back",
    "text/jinja": "the template engine",
    "text/chat": "conversations through the model's template",
    "model/peft": "LoRA files",
    "kvcache": "KV pages, prefix cache, swap",
    "blocks": "mathematics of a block, spans, plans, adapters",
    "net": "messages, identity, announcements, receipts",
    "net/transport": "ZeroMQ, relays, private swarms",
    "net/opendht": "records in a DHT",
    "net/router": "ports of home routers",
    "node": "the daemon swarm-node",
    "node/engine": "device thread, scheduler, training",
    "node/membership": "gossip, pings, reach, relays",
    "node/placement": "which blocks, on which devices",
    "node/protocol": "sessions and messages, without I/O",
    "sharing": "where a model's files come from",
    "sharing/hub": "models by name: HTTP, cache, manifests",
    "sharing/peers": "a model's files from nodes that share them",
    "client": "the library behind the program swarm",
    "client/net": "link, bootstrap, queries",
    "client/routing": "candidates, routes, statistics",
    "client/chain": "hops, failover, replicas",
    "client/audit": "checks, verdicts, evidence",
    "client/generate": "generator, sampler, drafts",
    "client/tune": "training through frozen blocks",
    "client/api": "settings, setup, the C API",
    "gateway": "the server: swarm serve",
    "gateway/grammar": "JSON schemas as token masks",
    "gateway/openai": "bodies of the OpenAI API",
    "gateway/pages": "chat and map for browsers",
    "gateway/queue": "answers in turn, workers with sessions",
    "gateway/http": "connections, routes, streams",
    "cli": "the program swarm",
    "cli/terminal": "keys, editing, styles",
    "cli/bench": "measures",
}
WIDTH, PITCH, GAP, LINE = 300, 345, 44, 17
COLUMNS = {"cli": 0, "gateway": 0, "include": 0, "node": 2, "sharing": 2, "sharing/peers": 2, "text": 2, "model": 2, "sharing/hub": 3,
           "net": 3}  # others: 1
SPLIT = ("sharing",)  # folders of which one room is below, and one above, another folder


def box_of(room):
    """The box in which a room is drawn: its folder's, or its own."""
    return room if room.split("/")[0] in SPLIT else room.split("/")[0]


def inside(box):
    return [room for room in ROOMS if box_of(room) == box and room != box]


def arrows():
    """{box: what it includes}, without those that are reached over another one."""
    needs = {box_of(room): set() for room in ROOMS if room != "base"}
    for room, others in ROOMS.items():
        if room != "base":
            needs[box_of(room)] |= {box_of(o) for o in others.split()} - {box_of(room)}

    def reached(name, over=()):
        if name in over:
            raise SystemExit(f"scripts/docs_rooms.py: {' -> '.join([*over, name])}: draw the rooms of one by themselves (SPLIT)")
        return needs[name].union(*(reached(other, (*over, name)) for other in needs[name]))

    return {name: {o for o in others if not any(o in reached(b) for b in others - {o})} for name, others in needs.items()}


def rows(needs):
    """{folder: row from above}: right below the lowest of those that include it."""
    row = {}

    def place(name):
        if name not in row:
            row[name] = 1 + max([place(user) for user in needs if name in needs[user]], default=-1)
        return row[name]

    for name in needs:
        place(name)
    return row


def box(name, x, y, height):
    def text(dy, words, size, weight=""):
        return f'<text x="{x + 12}" y="{y + dy}" font-size="{size}"{weight}>{html.escape(words)}</text>'

    lines = [f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{height}" rx="6" fill="#ffffff" stroke="#57606a"/>',
             text(21, f"{name}/", 15, ' font-weight="bold"'), text(39, WHAT[name], 10.5)]
    for i, room in enumerate(inside(name)):
        lines.append(text(60 + LINE * i, f"{room.split('/', 1)[1]}/ {WHAT[room]}", 10.5))
    return lines


def picture():
    needs = arrows()
    row = rows(needs)
    height = {name: 52 + (LINE * len(inside(name)) + 4 if inside(name) else 0) for name in needs}
    tall = [max(height[n] for n in needs if row[n] == r) for r in range(max(row.values()) + 1)]
    at = {n: (20 + PITCH * COLUMNS.get(n, 1), 20 + sum(tall[: row[n]]) + GAP * row[n]) for n in needs}
    if len(set(at.values())) < len(at):
        raise SystemExit("scripts/docs_rooms.py: two boxes lie at one place: give one another column (COLUMNS)")
    wide, low = 20 + WIDTH + max(x for x, _ in at.values()), 20 + sum(tall) + GAP * len(tall)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{low + 62}" viewBox="0 0 {wide} {low + 62}">',
           "<!-- scripts/make_docs.py writes this file -->",
           '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
           '<path d="M0 0 8 4 0 8z" fill="#0969da"/></marker></defs>',
           f'<rect width="{wide}" height="{low + 62}" rx="8" fill="#f6f8fa" stroke="#d0d7de"/>',
           '<g font-family="DejaVu Sans, Verdana, sans-serif" fill="#1f2328">']
    for name, others in needs.items():
        for other in sorted(others, key=list(needs).index):
            x, y = at[name]
            ox, oy = at[other]
            start = min(max(ox + WIDTH // 2, x + 20), x + WIDTH - 20)
            end = min(max(start, ox + 20), ox + WIDTH - 20)
            out.append(f'<path d="M{start} {y + height[name]}L{end} {oy - 2}" stroke="#0969da" stroke-width="1.6" marker-end="url(#a)"/>')
    for name in needs:
        out += box(name, *at[name], height[name])
    out += [f'<rect x="20" y="{low - 10}" width="{wide - 40}" height="52" rx="6" fill="#ffffff" stroke="#57606a"/>',
            f'<text x="32" y="{low + 11}" font-size="15" font-weight="bold">base/</text>',
            f'<text x="32" y="{low + 29}" font-size="10.5">{WHAT["base"]}: included by all</text>', "</g>", "</svg>", ""]
    return "\n".join(out)


def table():
    for name in set(ROOMS) - set(WHAT):
        raise SystemExit(f"scripts/docs_rooms.py: say in WHAT what {name}/ is")
    lines = ["| room | what | includes, beside base/ |", "| --- | --- | --- |"]
    for room, others in ROOMS.items():
        lines.append(f"| `{room}/` | {WHAT[room]} | {', '.join(f'`{o}/`' for o in others.split()) or 'nothing'} |")
    return "\n".join(lines)
