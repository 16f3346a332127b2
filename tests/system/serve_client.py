"""A client of `swarm serve` for tests: `serve_client.py SCENARIO URL [argument...]` runs one of the functions below and fails
by an assertion. Plain sockets, so that a test decides when a connection ends."""
import http.client
import json
import os
import signal
import socket
import sys
import threading
import time

LIMIT = 60  # seconds for whatever is waited for
MODEL = "tiny"


def address(url):
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)


def call(url, path, body=None, headers=None, method=None):
    """(status, headers, body) of one request."""
    c = http.client.HTTPConnection(*address(url), timeout=LIMIT)
    data = None if body is None else json.dumps(body) if isinstance(body, (dict, list)) else body
    c.request(method or ("GET" if body is None else "POST"), path, data, headers or {})
    r = c.getresponse()
    text = r.read()
    c.close()
    return r.status, {k.lower(): v for k, v in r.getheaders()}, text


def post(url, path, **body):
    status, _, text = call(url, path, {"model": MODEL} | body)
    assert status == 200, (status, text)
    return json.loads(text)


class Stream:
    """A streaming request; the connection is closed with close()."""

    def __init__(self, url, path, key=None, **body):
        data = json.dumps({"model": MODEL, "stream": True} | body).encode()
        self.socket = socket.create_connection(address(url), timeout=LIMIT)
        auth = f"Authorization: Bearer {key}\r\n" if key else ""
        self.socket.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{auth}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        self.response = http.client.HTTPResponse(self.socket)
        self.response.begin()
        self.status = self.response.status
        if self.status == 200:  # what a proxy between must know, so that it passes each piece on at once
            kept = [self.response.headers[name] for name in ("X-Accel-Buffering", "Cache-Control")]
            assert kept == ["no", "no-cache"], kept

    def lines(self):
        while line := self.response.readline():
            yield line.decode().rstrip("\n")

    def events(self):
        for line in self.lines():
            if line == "data: [DONE]":
                return
            if line.startswith("data: "):
                yield json.loads(line[6:])
        raise AssertionError("the stream ended without [DONE]")

    def close(self):
        self.response.close()
        self.socket.close()


def text_of(event):
    if not event["choices"]:
        return ""
    choice = event["choices"][0]
    return choice["text"] if "text" in choice else choice["delta"].get("content") or ""


def metric(url, name):
    _, _, page = call(url, "/metrics")
    return int(next(line.split()[1] for line in page.decode().splitlines() if line.startswith(f"swarm_serve_{name} ")))


def wait_metric(url, name, value):
    until = time.time() + LIMIT
    while metric(url, name) != value:
        assert time.time() < until, f"{name} is {metric(url, name)}, not {value}"
        time.sleep(0.05)


def same_text(url, expected):
    """Stream, whole reply and `swarm generate` give one text, also sampled."""
    for want in json.loads(expected):
        request = want["request"]
        whole = post(url, "/v1/completions", **request)
        assert whole["choices"][0]["text"] == want["text"], (whole, want)
        stream = Stream(url, "/v1/completions", **request)
        assert "".join(map(text_of, stream.events())) == want["text"]
    chat = {"messages": [{"role": "user", "content": "Name one colour."}], "max_tokens": 12, "temperature": 0}
    whole = post(url, "/v1/chat/completions", **chat)
    events = list(Stream(url, "/v1/chat/completions", stream_options={"include_usage": True}, **chat).events())
    assert "".join(map(text_of, events)) == whole["choices"][0]["message"]["content"]
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert events[-1]["swarm"]["hops"] and events[-1]["swarm"]["failovers"] == 0
    several = post(url, "/v1/completions", prompt="One, two,", n=3, max_tokens=4, temperature=0)
    assert len({c["text"] for c in several["choices"]}) == 1 and [c["index"] for c in several["choices"]] == [0, 1, 2]


def choices(url, most):
    """A request has as many choices as can run and wait, also as prompts; the answer says how many."""
    most = int(most)
    for body in {"n": most + 1}, {"n": 2, "prompt": ["One"] * (most // 2 + 1)}:
        status, _, text = call(url, "/v1/completions", {"model": MODEL, "prompt": "One", "max_tokens": 1} | body)
        assert status == 400 and f"{most}" in json.loads(text)["error"]["message"], (status, text)
    assert len(post(url, "/v1/completions", prompt="One", n=most, max_tokens=1)["choices"]) == most


def defaults(url, said, seed):
    """Without fields of sampling an answer is that of `swarm chat`; /v1/models says how it is sampled."""
    ask = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "seed": int(seed)}
    answer = post(url, "/v1/chat/completions", **ask)["choices"][0]
    assert answer["message"]["content"].strip() == said.strip(), (answer, said)
    used = json.loads(call(url, "/v1/models")[2])["data"][0]["default_sampling"]
    assert used == {"temperature": 0.7, "top_p": 0.95, "top_k": 0, "min_p": 0, "repeat_penalty": 1}, used
    assert post(url, "/v1/chat/completions", **ask, **used)["choices"][0]["message"] == answer["message"]
    assert post(url, "/v1/responses", input=ask["messages"], seed=ask["seed"])["output"][0]["content"][0]["text"] == answer["message"]["content"]


def limits(url):
    """An answer may ask for more than there is room for and ends with the context, which --ctx makes short here."""
    ask = {"messages": [{"role": "user", "content": "Tell a story."}], "temperature": 0, "ignore_eos": True, "max_tokens": 64000}
    whole = post(url, "/v1/chat/completions", **ask)
    assert whole["choices"][0]["finish_reason"] == "length" and whole["usage"]["total_tokens"] in (96, 97), whole["usage"]
    status, _, text = call(url, "/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 200}], "max_tokens": 1})
    error = json.loads(text)["error"]
    assert status == 400 and error["code"] == "context_length_exceeded" and "holds 96" in error["message"], (status, error)


TOOL = {"type": "function", "function": {"name": "shell", "description": "Runs a command", "parameters": {
    "type": "object", "properties": {"command": {"type": "string"}, "n": {"type": "integer", "maximum": 18446744073709551615}},
    "required": ["command"], "additionalProperties": False}}}


def agents(url):
    """What agents send: paths and names as they write them, fields that mean nothing here, tools though the template has none."""
    for path in "/models", "/v1/models/", "/v1/models/tiny", "/models/openai/TINY", "/v1/health", "/health/":
        assert call(url, path)[0] == 200, path
    for path, body, allow in ("/v1/chat/completions", None, "POST"), ("/models", {}, "GET, HEAD"), ("/swarm", {}, "GET, HEAD"):
        status, headers, _ = call(url, path, body)
        assert status == 405 and headers["allow"] == allow, (path, status, headers)
    status, _, text = call(url, "/v1/models/other")
    assert status == 404 and json.loads(text)["error"]["code"] == "model_not_found", text
    for path in "/v1/models/", "/v1/model", "/v1", "/v1/chat/completions/x":
        assert call(url, path)[0] == (200 if path == "/v1/models/" else 404), path
    status, _, text = call(url, "/chat/completions", b"")
    assert status == 400 and "is empty" in json.loads(text)["error"]["message"], text
    forced = post(url, "/v1/chat/completions", messages=[{"role": "user", "content": "List the files."}], tools=[TOOL],
                  tool_choice="required", max_tokens=100, seed=18446744073709551615, cache_prompt=True, keep_alive="5m")["choices"][0]
    call_ = forced["message"]["tool_calls"][0]
    assert forced["finish_reason"] == "tool_calls" and isinstance(json.loads(call_["function"]["arguments"]), dict), forced
    history = [{"role": "user", "content": "List the files."}, {**forced["message"], "id": "m1", "timestamp": 1},
               {"role": "tool", "tool_call_id": call_["id"], "content": "a.txt"}, {"role": "user", "content": "So?"}]
    assert post(url, "/v1/chat/completions", messages=history, tools=[TOOL], max_tokens=4)["usage"]["prompt_tokens"] > 150
    response = post(url, "/v1/responses", instructions="You are an agent.", max_output_tokens=8, store=True, truncation="auto",
                    input=[{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
                           {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
                    tools=[{"type": "function", "strict": False, **TOOL["function"]}, {"type": "custom", "name": "apply_patch"},
                           {"type": "web_search"}], include=["reasoning.encrypted_content"], client_metadata={"a": "b"},
                    reasoning={"effort": "medium", "summary": "auto"}, text={"verbosity": "low"}, parallel_tool_calls=False)
    assert response["output"] and response["tools"][0]["parameters"]["properties"]["n"]["maximum"] == 18446744073709551615, response
    status, _, text = call(url, "/v1/responses", {"input": [{"type": "item_reference", "id": "x"}]})
    assert status == 400 and "store" in json.loads(text)["error"]["message"], text


def prefixes(url):
    """A request that continues a conversation finds its session; another one leaves it alone."""
    chat = [{"role": "user", "content": "Name one colour."}]
    first = post(url, "/v1/chat/completions", messages=chat, max_tokens=8, temperature=0)
    post(url, "/v1/completions", prompt="Something else", max_tokens=2, temperature=0)
    chat += [first["choices"][0]["message"], {"role": "user", "content": "Another one?"}]
    second = post(url, "/v1/chat/completions", messages=chat, max_tokens=8, temperature=0)
    had = first["usage"]["prompt_tokens"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= had, second["usage"]


def echo(url):
    """Log-probabilities of a prompt do not depend on what the session held before."""
    request = {"prompt": "The capital of France is", "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 2}
    first = post(url, "/v1/completions", **request)["choices"][0]
    assert first["text"].startswith("The capital of France is") and first["logprobs"]["token_logprobs"][0] is None
    assert post(url, "/v1/completions", **request)["choices"][0] == first
    vector = post(url, "/v1/embeddings", input=["a", "b"])["data"]
    assert len(vector) == 2 and abs(sum(x * x for x in vector[0]["embedding"]) - 1) < 1e-3


def leaving(url):
    """Clients that leave free their session: before the first token, in an answer, in the queue, without a stream. The server
    has one session and a queue of one."""
    long = {"prompt": "word " * 300, "max_tokens": 200, "temperature": 0, "ignore_eos": True}
    s = Stream(url, "/v1/completions", **long)
    assert s.status == 200 and next(s.lines()) == ":", "there is no comment before the first token"
    s.close()
    wait_metric(url, "running", 0)
    tokens = metric(url, "generated_tokens_total")
    assert tokens == 0, f"{tokens} tokens came before the client left"

    s = Stream(url, "/v1/completions", prompt="Once", max_tokens=4000, temperature=0, ignore_eos=True)
    events = s.events()
    for _ in range(3):
        next(events)
    waiting = Stream(url, "/v1/completions", prompt="Twice", max_tokens=1, temperature=0)
    wait_metric(url, "queued", 1)
    status, headers, text = call(url, "/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 1})
    assert status == 429 and int(headers["retry-after"]) > 0 and json.loads(text)["error"]["message"], (status, text)
    status, _, text = call(url, "/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 1, "n": 2})
    assert status == 429, (status, text)
    waiting.close()
    wait_metric(url, "queued", 0)
    assert metric(url, "running") == 1
    s.close()
    wait_metric(url, "running", 0)

    c = socket.create_connection(address(url))
    body = json.dumps({"model": MODEL, "prompt": "Once", "max_tokens": 4000, "ignore_eos": True}).encode()
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    wait_metric(url, "running", 1)
    c.close()
    wait_metric(url, "running", 0)
    assert metric(url, "generated_tokens_total") < 1000 and metric(url, "cancelled_total") == 4
    post(url, "/v1/completions", prompt="x", max_tokens=1)  # the session is free


def access(url, key):
    """Keys, names in Host, origins, methods, sizes."""
    right = {"Authorization": f"Bearer {key}"}
    for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": f"Bearer {key[:-1]}"}, {"Authorization": key},
                    {"Authorization": f"Bearer {key}x"}, {"Authorization": f"Bearer # {key}"}):
        status, _, text = call(url, "/v1/models", headers=headers)
        assert status == 401 and json.loads(text)["error"]["code"] == "invalid_api_key", (headers, status)
        assert call(url, "/metrics", headers=headers)[0] == call(url, "/api/swarm", headers=headers)[0] == 401
    for k in (key, "the-second-key-of-the-file"):
        assert call(url, "/v1/models", headers={"Authorization": f"bearer {k}"})[0] == 200
    paths = json.loads(call(url, "/openapi.json")[2])["paths"]
    for path in paths:
        assert call(url, path.replace("{id}", MODEL), headers=right)[0] != 404, f"{path} is described and not there"
    assert call(url, "/health")[0] == call(url, "/")[0] == call(url, "/swarm")[0] == 200
    page = call(url, "/")[1]
    assert "script-src 'self'" in page["content-security-policy"] and page["x-content-type-options"] == "nosniff"

    for host, status in (("evil.example", 403), ("evil.example:80", 403), ("127.0.0.1.evil.example", 403), ("localhost", 200),
                         ("localhost:9", 200), ("LOCALHOST", 200), ("10.1.2.3", 200), ("[::1]:80", 200), ("[::1", 403), ("", 403),
                         ("served.example", 200), ("localhost:80@evil.example", 403), ("localhost/x", 403)):
        got = call(url, "/v1/models", headers=right | {"Host": host})[0]
        assert got == status, f"Host: {host} gives {got}"
    for origin, status in (("http://evil.example", 403), ("null", 403), ("http://localhost", 403), (url, 200),
                           ("https://app.example", 200), ("https://app.example.evil", 403), ("ftp://" + url[7:], 403)):
        got, headers, _ = call(url, "/v1/models", headers=right | {"Origin": origin})
        assert got == status, f"Origin: {origin} gives {got}"
        allowed = headers.get("access-control-allow-origin")
        assert allowed == (origin if origin == "https://app.example" else None), (origin, allowed)
    preflight = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    status, headers, _ = call(url, "/v1/chat/completions", headers=preflight, method="OPTIONS")
    assert status == 204 and "authorization" in headers["access-control-allow-headers"]
    assert call(url, "/v1/chat/completions", headers=preflight | {"Origin": "https://evil.example"}, method="OPTIONS")[0] == 403

    assert call(url, "/v1/nothing", headers=right)[0] == 404 and call(url, "/v1/models", {}, right)[0] == 405
    status, headers, _ = call(url, "/v1/models", headers=right | {"x-request-id": "mine-1"})
    assert headers["x-request-id"] == "mine-1"
    assert call(url, "/v1/models", headers=right | {"x-request-id": "a b"})[1]["x-request-id"] != "a b"
    assert call(url, "/v1/completions", b"{", right)[0] == 400
    nested = b'{"model":"tiny","prompt":' + b"[" * 100000
    assert call(url, "/v1/completions", nested, right)[0] == 400

    c = socket.create_connection(address(url), timeout=LIMIT)  # a NUL in the path, and refused before it is handled
    c.sendall(b"POST /v%001/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9#9\r\n\r\n")
    assert b" 400 " in c.recv(100)
    c.close()
    assert call(url, "/health", headers=right)[0] == 200  # the server is there
    c = socket.create_connection(address(url), timeout=LIMIT)
    c.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Length: 99999999999\r\n\r\n".encode())
    assert b" 413 " in c.recv(100)
    c.close()
    c = socket.create_connection(address(url), timeout=LIMIT)
    c.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    piece = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    for _ in range(40):
        c.sendall(piece)
    c.sendall(b"0\r\n\r\n")
    assert b" 413 " in c.recv(100)
    c.close()


def computing(url):
    """The name of the node that has a session."""
    until = time.time() + LIMIT
    while True:
        nodes = json.loads(call(url, "/api/swarm")[2])["nodes"]
        if names := [n["name"] for n in nodes if n.get("sessions")]:
            return names[0]
        assert time.time() < until, "no node has a session"
        time.sleep(0.2)


def steady(url, expected, ready, killed):
    """An answer whose node is killed in the middle is the same."""
    s = Stream(url, "/v1/completions", prompt="Once upon a time", max_tokens=100, temperature=0, ignore_eos=True)
    text = ""
    for i, event in enumerate(s.events()):
        text += text_of(event)
        if i == 3:
            with open(ready + ".part", "w") as f:
                f.write(computing(url))
            os.rename(ready + ".part", ready)
            until = time.time() + LIMIT
            while True:
                try:
                    open(killed).close()
                    break
                except FileNotFoundError:
                    assert time.time() < until, "the node was not killed"
                    time.sleep(0.02)
    assert text == expected, (text, expected)
    assert metric(url, "failovers_total") >= 1
    assert metric(url, "drafted_tokens_total") >= metric(url, "judged_tokens_total") >= metric(url, "accepted_tokens_total")


def view(url):
    d = json.loads(call(url, "/api/swarm")[2])
    assert d["blocks"] == d["model"]["blocks"] == 30 and not d["gaps"] and d["nodes"][0]["answered"] and d["nodes"][0]["device"] == "cpu", d


def ending(url, node, slow, ready, refused):
    """SIGTERM: an answer in progress is finished, a new request is refused. The node, which the process `slow` lets compute a little
    at a time, stands still from the first token on until the server drains."""
    s = Stream(url, "/v1/completions", prompt=[1, 40], max_tokens=150, temperature=0, ignore_eos=True)
    events = s.events()
    next(events)
    os.kill(int(slow), signal.SIGKILL)
    os.kill(int(node), signal.SIGSTOP)
    health = http.client.HTTPConnection(*address(url), timeout=LIMIT)
    open(ready, "w").close()
    until = time.time() + LIMIT
    while True:
        health.request("GET", "/health")
        r = health.getresponse()
        r.read()
        if r.status == 503:
            break
        assert time.time() < until, "the server does not drain"
        time.sleep(0.02)
    assert call(url, "/v1/completions", {"model": MODEL, "prompt": [5]})[0] == 503
    open(refused, "w").close()
    tokens = sum(1 for e in events if e["choices"] and e["choices"][0]["finish_reason"] is None)
    assert tokens > 20, f"only {tokens} tokens came after SIGTERM"


def together(url):
    """Eight at once, over four sessions, give each the text that it gives alone."""
    prompts = [f"The number {i} is" for i in range(8)]
    ask = lambda p: post(url, "/v1/completions", prompt=p, max_tokens=12, temperature=0)["choices"][0]["text"]
    alone = [ask(p) for p in prompts]
    got = [None] * len(prompts)
    threads = [threading.Thread(target=lambda i=i: got.__setitem__(i, ask(prompts[i]))) for i in range(len(prompts))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == alone, (got, alone)


def crowd(url, ready):
    """Streams, whole replies and choices of many clients at once, beside clients that leave and others that look: each text is
    the one that it is alone, also when a node is killed meanwhile. For a tiny model: prompts are token ids."""
    prompts = [[1, 40 + i, 41] for i in range(6)]
    request = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}
    alone = [post(url, "/v1/completions", prompt=p, **request)["choices"][0]["text"] for p in prompts]
    wrong, done, answers = [], threading.Event(), threading.Semaphore(0)

    def guarded(work):
        try:
            work()
        except BaseException as e:
            wrong.append(repr(e))
        answers.release()

    def stream(i):
        for _ in range(4):
            got = "".join(map(text_of, Stream(url, "/v1/completions", prompt=prompts[i], **request).events()))
            assert got == alone[i], (i, got, alone[i])
            answers.release()

    def whole():
        for _ in range(3):
            choices = post(url, "/v1/completions", prompt=prompts[:2], n=2, **request)["choices"]
            assert [c["text"] for c in choices] == [alone[0]] * 2 + [alone[1]] * 2, choices
            assert len(post(url, "/v1/embeddings", input=prompts[2:4])["data"]) == 2

    def leave():
        for _ in range(6):
            s = Stream(url, "/v1/completions", prompt=[1, 99], max_tokens=150, ignore_eos=True)
            next(s.lines())
            s.close()

    def look():
        while not done.is_set():
            for path in ("/health", "/metrics", "/api/swarm", "/v1/models", "/swarm"):
                assert call(url, path)[0] == 200, path

    work = [lambda i=i: stream(i) for i in range(6)] + [whole, leave, leave]
    threads = [threading.Thread(target=guarded, args=[w]) for w in work + [look]]
    for t in threads:
        t.start()
    for _ in range(6):  # some answers are whole, others in the middle
        answers.acquire(timeout=LIMIT)
    with open(ready + ".part", "w") as f:
        f.write(computing(url))
    os.rename(ready + ".part", ready)
    for t in threads[:-1]:
        t.join()
    done.set()
    threads[-1].join()
    assert not wrong, wrong
    wait_metric(url, "running", 0)


def answered(url):
    """One answer of a tiny model."""
    post(url, "/v1/completions", prompt=[1, 40, 41], max_tokens=20, temperature=0, ignore_eos=True)


def while_nodes_die(url, stop):
    """Answers of several clients, one after the other, until the file `stop` is there: none fails, and each is the first one
    again. For a tiny model: prompts are token ids."""
    prompts = [[1, 40 + i, 41] for i in range(3)]
    request = {"max_tokens": 20, "temperature": 0, "ignore_eos": True}
    alone = [post(url, "/v1/completions", prompt=p, **request)["choices"][0]["text"] for p in prompts]
    wrong, counts = [], [0] * 3

    def ask(i):
        try:
            while not os.path.exists(stop):
                got = post(url, "/v1/completions", prompt=prompts[i], **request)["choices"][0]["text"]
                assert got == alone[i], (got, alone[i])
                counts[i] += 1
        except BaseException as e:
            wrong.append(repr(e))

    threads = [threading.Thread(target=ask, args=[i]) for i in range(3)]
    for t in threads:
        t.start()
    with open(stop + ".begun", "w"):
        pass
    for t in threads:
        t.join()
    assert not wrong, wrong
    print(sum(counts), "answers")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
