"""The API that the pages use, over canned answers: for tests of the pages without a swarm, and for work on them by hand.

    python3 tests/pages/mock_server.py [PORT]

The last message of a conversation chooses the answer: a name of ANSWERS or of the branches of answer(); other texts get a
short answer. Files come from gateway/pages, with the headers of gateway/pages/pages.c. Prints its address.
"""
import http.server
import json
import os
import re
import sys
import threading
import time
import urllib.parse

PAGES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../gateway/pages")
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
SWARM = {"hops": [{"node": "a1b2c3d4e5", "name": "alpha", "blocks": "0:12"}, {"node": "b1b2", "name": "beta", "blocks": "12:24"}, {"node": "gamma@192.0.2.7:31337", "blocks": "24:30"}],
         "failovers": 1, "checked": True, "cached_tokens": 118, "laps_saved": 41.3}
SAMPLING = {"temperature": 0.7, "top_p": 0.95, "top_k": 40}
HOSTILE = """<script>window.hacked = 1</script> <img src=x onerror="window.hacked = 2"> <iframe srcdoc="<script>parent.hacked = 3</script>">

[a link](javascript:window.hacked=4) [mixed](JaVaScRiPt:window.hacked=5) [tab](java\tscript:window.hacked=6) [data](data:text/html,<script>window.hacked=7</script>)
[entity](javascript&#58;window.hacked=8) [vb](vbscript:x) [file](file:///etc/passwd) [relative](/v1/models) [protocol](//evil.example/x) ![an image](https://evil.example/track.png)
<javascript:window.hacked=9> [good](https://good.example/a?b=c) https://bare.example/page.

| <b>head</b> | x" onmouseover="window.hacked=10 |
| --- | --- |
| [cell](javascript:window.hacked=11) | `<script>` |

```html" onclick="window.hacked=12
<script>window.hacked = 13</script>
```

- item <svg onload=window.hacked=14>
> quote <a href="javascript:window.hacked=15">x</a>

&lt;script&gt;window.hacked=16&lt;/script&gt; [colon](javascript&#x3a;window.hacked=17) [letter](&#106;avascript:window.hacked=18) <https://good.example/?a=1&amp;b=2>

\\( \\text{<img src=x onerror=window.hacked=19>} + <script>window.hacked=20</script> \\) $\\operatorname{<svg onload=window.hacked=21>}$
\\( \\href{javascript:window.hacked=22}{x} \\) \\( \\class{x" onload="window.hacked=23}{y} \\) \\[ \\tag{<b onclick=window.hacked=24>} x \\] \\( \\begin{array}{c" onclick="window.hacked=25} x \\end{array} \\)
"""
MARKDOWN = """## A heading

Two *words* in **bold**, `code`, ~~gone~~, a snake_case_name and 2 * 3 * 4.

1. first
2. second
   - nested
   - more

| name | tokens/s |
| :-- | --: |
| alpha | 42 |

```python
def add(a, b):
    return a + b
```

> A quotation. [A page](https://example.org/).
"""
FORMULA = r"""The sum \(\sum_{i=1}^n i = \frac{n(n+1)}{2}\), and the matrix

\[ A = \begin{pmatrix} a_{11} & a_{12} \\ a_{21} & a_{22} \end{pmatrix}, \qquad \int_{-\infty}^{\infty} e^{-x^2}\,dx = \sqrt{\pi}, \qquad f(x) = \begin{cases} 1 & \text{if } x > 0 \\ 0 & \text{otherwise} \end{cases} \]

Long in a line: \(a_1 + a_2 + a_3 + a_4 + a_5 + a_6 + a_7 + a_8 + a_9 + a_{10} + a_{11} + a_{12} = 0\); it costs $5 or $6.
"""
COUNT = " ".join(map(str, range(5000)))
ANSWERS = {"count": COUNT, "hostile": HOSTILE, "formula": FORMULA, "markdown": MARKDOWN, "long": "word " * 2000,
           "formulas": "\n\n".join(rf"\[ {f} \]" for f in (
               *("{" * n + "x" + "}" * n for n in (15, 3000)), r"\frac{1}{" * 18 + "x" + "}" * 18, r"\left(\sqrt{" * 9 + "x" + r"}\right)" * 9, r"\left(" * 1000 + "x" + r"\right)" * 1000,
               "x^{" * 2000 + "}" * 2000, r"\hat{" * 1500 + "x" + "}" * 1500, r"\begin{matrix}" * 500 + r"\end{matrix}" * 500, "{" * 7000, r"\frac" * 1500, r"\sqrt[" * 1000, "a" * 7900, "a" * 9000,
               r"\begin{matrix}" + "&" * 3000 + r"\end{matrix}", r"\not" * 2000 + "=")) + "\n\n" + "$" * 20001 + "\n\n" + "$a " * 10000 + "\n\n" + r"\( " * 20000 + "\n\n" + r"\begin{align}" * 5000 + "\n" + r"\\[" * 9000,
           "deep": ">" * 3000 + " x\n" + "- " * 3000 + "\n" + "*a " * 20000 + "\n" + "[" * 20000 + "\n" + "~" * 20000 + "`\n" + "|" * 5000 + "\n" + "-|" * 5000}


def page_headers():
    """The headers as pages.c has them: the test is of what is shipped."""
    with open(os.path.join(PAGES, "pages.c"), encoding="utf8") as f:
        table = f.read().split("sn_page_headers[SN_PAGE_HEADERS] = {")[1].split("\n};")[0]
    return [(name, "".join(re.findall(r'"([^"]*)"', value))) for name, value in re.findall(r'\{"([\w-]+)",\s*((?:"[^"]*"\s*)+)\}', table)]


def swarm_map(gap):
    def node(name, blocks, **more):
        first, end = map(int, blocks.split(":"))
        return {"id": name.encode().hex() * 4, "name": name, "address": "192.0.2.7:31337", "blocks": blocks, "state": "online", "model": "m1",
                "version": "0.1.0", "answered": True, "tokens_per_s": 900 // (end - first), "device": "cpu", "rtt_ms": 1.5 + first, "sessions": 3, "sessions_max": 64,
                "kv_bytes": 1 << 28, "kv_bytes_max": 1 << 30, "tokens": 4000, "compute_us": 80000000, "adapters": [], "model_name": "SmolLM2 135M Instruct", **more}
    nodes = [node("alpha", "0:12", adapters=[{"name": "poems", "hash": "00"}]), node("beta", "8:24", device="cuda:0"), node("gamma", "24:30"), node("delta", "0:8")]
    if gap:
        nodes[2] |= {"answered": False, "error": "no reply within 2 seconds"}
        nodes.append({"id": "77" * 32, "blocks": "0:4", "name": "<script>window.hacked = 20</script>"})  # most fields are missing
    covers = lambda b: [n for n in nodes if n.get("answered") and int(n["blocks"].split(":")[0]) <= b < int(n["blocks"].split(":")[1])]
    coverage = {"model": "m1", "n_blocks": 30, "nodes_per_block": [len(covers(b)) for b in range(30)], "tokens_per_s_per_block": [sum(n["tokens_per_s"] for n in covers(b)) for b in range(30)]}
    return {"model": {"name": "SmolLM2-135M-Instruct", "id": "m1", "blocks": 30}, "blocks": 30, "nodes": nodes, "coverage": [coverage], "errors": [],
            "gaps": [{"blocks": "24:30", "command": "swarm-node --model PATH --blocks 24:30 --join 192.0.2.7:31337"}] if gap else []}


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    key = None  # with one, requests need it
    gap = False
    pace = 0.01  # seconds between the parts of an answer
    down = False  # connections end without a reply

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.asked = []  # bodies of the requests for an answer
        self.left = threading.Event()  # a client left before its answer was whole


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, body, kind, status=200, headers=()):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in [("Content-Type", kind), ("Content-Length", str(len(body))), *headers]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status, message, *headers):
        self.reply({"error": {"message": message, "type": "error", "param": None, "code": None}}, "application/json", status, headers)

    def parse_request(self):
        if self.server.down:
            self.close_connection = True
            return False
        return super().parse_request()

    def allowed(self):
        if self.server.key and self.headers.get("Authorization") != "Bearer " + self.server.key:
            self.refuse(401, "this server asks for an API key: send it as 'Authorization: Bearer KEY'")
            return False
        return True

    def do_GET(self):
        path = urllib.parse.urlsplit(self.path).path
        name = {"/": "index.html", "/swarm": "swarm.html"}.get(path) or (path.startswith("/pages/") and os.path.basename(path))
        if name and name.split(".")[-1] in TYPES and os.path.isfile(os.path.join(PAGES, name)):
            with open(os.path.join(PAGES, name), "rb") as f:
                self.reply(f.read(), TYPES[name.split(".")[-1]] + "; charset=utf-8", headers=page_headers())
        elif path == "/v1/models" and self.allowed():
            self.reply({"object": "list", "data": [{"id": "SmolLM2-135M-Instruct", "object": "model", "default_sampling": SAMPLING}]}, "application/json")
        elif path == "/api/swarm":
            self.reply(swarm_map(self.server.gap), "application/json")
        elif path not in ("/v1/models",):
            self.refuse(404, "there is no such page")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions":
            return self.refuse(404, "there is no such page")
        if not self.allowed():
            return
        self.server.asked.append(body)
        last = body["messages"][-1]["content"].split("\n\n")[-1]
        if last == "busy":
            return self.refuse(429, "all sessions are in use", ("Retry-After", "7"))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            self.answer(last)
        except OSError:
            self.server.left.set()

    def send(self, data):
        self.wfile.write(f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode())
        self.wfile.flush()

    def chunk(self, delta, n, finish=None, **more):
        self.send({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": {"completion_tokens": n}, **more})

    def answer(self, last):
        self.wfile.write(b": waiting\n\n")
        self.chunk({"role": "assistant", "content": ""}, 0)
        n = 0
        if last == "wait":
            for _ in range(10000):
                self.wfile.write(b": waiting\n\n")
                time.sleep(0.05)
        if last == "think":
            for n, word in enumerate(["Let", " me", " think", "."], 1):
                self.chunk({"reasoning_content": word}, n)
        text = ANSWERS.get(last) or ("slow " * 3000 if last in ("endless", "error", "cut") else f"An answer to: {last}")
        size = 50 if last == "long" else 5
        parts = [text[i:i + size] for i in range(0, len(text), size)] if len(text) < 30000 else [text]
        for i, part in enumerate(parts):
            if last == "error" and i == 5:
                return self.send({"error": {"message": "no node serves blocks 12:24 any more", "type": "server_error"}})
            if last == "cut" and i == 5:
                return
            n += 1
            self.chunk({"content": part}, n)
            time.sleep(self.server.pace)
        self.chunk({}, n, "stop")
        self.send({"object": "chat.completion.chunk", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": n}, "swarm": SWARM})
        self.send("[DONE]")


def start(port=0):
    server = Server(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_address[1]}"


if __name__ == "__main__":
    print(start(int(sys.argv[1]) if len(sys.argv) > 1 else 0)[1], flush=True)
    threading.Event().wait()
