"""A model hub for tests, with faults: hub_server.py FOLDER [--faults | --fault NAME] [--rate BYTES]

FOLDER/ORG/NAME/FILE are the files of repositories. Prints "PORT STORE_PORT" when it listens on 127.0.0.1. Files are
described by the first port and sent by the second one, as by hubs whose bytes lie in a store elsewhere. GET /-/counts
says how many bytes of files were sent, and how often the store saw the token. With --faults the store answers many
requests as real servers now and then do: bodies that end too soon, no answer, 429, 500, the whole file instead of a range, gzip,
locations that have expired. --fault does one thing only, all the time: truncated (each long body ends after a third of it, once for
each place), silent (the connection ends without an answer, once for each place), whole (a range is answered by 200), gzip, other (other bytes than were asked for), wrong (a byte is another one),
changes (after its tenth answer the store has another version), sizeless (the list of files has names alone, as that of a mirror). The store redirects /loop/... to itself. --rate: bytes a second of each body. POST /-/commit changes the
commit, as a push to the repository does. The first port is a proxy, too: for requests to any host that no resolver finds.
"""
import functools, gzip, hashlib, json, mmap, os, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

root, faulty = sys.argv[1], "--faults" in sys.argv


def option(name):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else ""


fault, rate = option("--fault"), int(option("--rate") or 0)
cut = set()  # where bodies were truncated
counts = {"bytes": 0, "requests": 0, "token": 0, "described": 0, "trees": 0, "proxied": 0}
state = {"commit": "1" * 40, "nth": 0}
lock = threading.Lock()


@functools.lru_cache
def sha256_of(path, size, changed):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def sha256(path):
    facts = os.stat(path)
    return sha256_of(path, facts.st_size, facts.st_mtime_ns)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, code, body=b"", counted=False, **headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        for at in range(0, len(body) if self.command != "HEAD" else 0, 1 << 16):
            self.wfile.write(body[at : at + (1 << 16)])
            if counted:
                with lock:
                    counts["bytes"] += min(1 << 16, len(body) - at)
            if rate:
                time.sleep((1 << 16) / rate)

    def do_HEAD(self):
        self.do_GET()

    def do_POST(self):
        with lock:
            state["commit"] = "2" * 40
        self.answer(200, b"{}")


class Hub(Handler):
    def do_GET(self):
        path = self.path.split("?")[0]
        if path.startswith("http://nowhere.invalid/"):  # as a proxy
            path = path.removeprefix("http://nowhere.invalid")
            counts["proxied"] += 1
        if path == "/-/counts":
            return self.answer(200, json.dumps(counts).encode())
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"] and len(parts) == 6 and parts[4] == "revision":
            return self.tree("/".join(parts[2:4]), parts[5])
        if len(parts) >= 5 and parts[2] == "resolve":
            return self.resolve("/".join(parts[:2]), "/".join(parts[4:]))
        self.answer(404)

    def tree(self, repo, revision):
        folder = os.path.join(root, repo)
        counts["trees"] += 1
        if not os.path.isdir(folder) or revision not in ("main", "1" * 40, "2" * 40):
            return self.answer(404)
        if self.headers.get("Authorization") != "Bearer secret" and repo.startswith("closed/"):
            return self.answer(401)
        names = sorted(os.path.relpath(os.path.join(at, name), folder) for at, _, names in os.walk(folder) for name in names)
        files = [{"rfilename": name, "size": os.path.getsize(os.path.join(folder, name)),
                  "lfs": {"sha256": sha256(os.path.join(folder, name))}} for name in names]
        if fault == "sizeless":
            files = [{"rfilename": f["rfilename"]} for f in files]
        self.answer(200, json.dumps({"sha": state["commit"], "siblings": files}).encode())

    def resolve(self, repo, name):
        path = os.path.join(root, repo, name)
        counts["described"] += 1
        if not os.path.isfile(path):
            return self.answer(404)
        self.answer(302, Location=f"http://127.0.0.1:{store.server_port}/{repo}/{name}?signature=1",
                    X_Repo_Commit=state["commit"], X_Linked_Etag='"' + sha256(path) + '"',
                    X_Linked_Size=str(os.path.getsize(path)))


class Store(Handler):
    def do_GET(self):
        path = os.path.join(root, self.path.split("?")[0].lstrip("/"))
        if self.path.startswith("/loop/"):
            return self.answer(302, Location=self.path)
        if not os.path.isfile(path):
            return self.answer(404)
        with open(path, "rb") as f:
            data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        with lock:
            counts["requests"] += 1
            counts["token"] += "Authorization" in self.headers
            state["nth"] += faulty
            nth = state["nth"]
        begin, end, code = 0, len(data), 200
        wanted = self.headers.get("Range")
        if wanted and nth % 11 != 3 and fault != "whole":
            first, last = wanted.removeprefix("bytes=").split("-")
            begin, end, code = int(first), min(int(last) + 1, len(data)), 206
        headers = {"Content_Range": f"bytes {begin}-{end - 1}/{len(data)}"} if code == 206 else {}
        body = data[begin:end]
        if faulty and nth % 7 == 1:
            return self.answer(429, b"slow down", Retry_After="0")
        if faulty and nth % 7 == 2:
            return self.answer(500, b"x" * 100000)
        if faulty and nth % 13 == 5:
            return self.answer(403, b"expired")
        if faulty and code == 200 and nth % 2:
            packed = gzip.compress(body)
            return self.answer(200, packed, Content_Encoding="gzip")
        if fault == "gzip":
            return self.answer(code, gzip.compress(body, 1), Content_Encoding="gzip", **headers)
        if fault == "other" and begin:
            headers["Content_Range"] = f"bytes {begin - 1}-{end - 2}/{len(data)}"
        if fault == "wrong" and end > 60000 >= begin:
            body = body[: 60000 - begin] + bytes([body[60000 - begin] ^ 1]) + body[60001 - begin :]
        if (fault == "silent" and begin not in cut) or (faulty and nth % 17 == 9):  # no answer at all
            cut.add(begin)
            self.close_connection = True
            return None
        headers["ETag"] = '"v2"' if fault == "changes" and counts["requests"] > 10 else '"v1"'
        truncated = fault == "truncated" and begin not in cut and len(body) > 4000000
        cut.add(begin)
        if (truncated or (faulty and nth % 3 == 0)) and len(body) > 100:  # the connection breaks off in the middle
            self.answer(code, body[: len(body) // 3], True, Content_Length=str(len(body)), **headers)
            self.close_connection = True
            return None
        self.answer(code, body, True, **headers)


store = ThreadingHTTPServer(("127.0.0.1", 0), Store)
hub = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
for server in store, hub:
    server.daemon_threads = True
threading.Thread(target=store.serve_forever, daemon=True).start()
print(hub.server_port, store.server_port, flush=True)
hub.serve_forever()
