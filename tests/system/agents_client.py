"""Agents at an OpenAI server: each conversation is a prompt of token ids that grows by a tool's result in each turn.

agents URL CONVERSATIONS TOKENS TURNS: all at once; prints their texts. too_long URL TOKENS: asks with a prompt that fits nowhere, whole
and as a stream."""
import http.client, json, sys, threading, time, urllib.parse


def post(url, body):
    at = urllib.parse.urlparse(url)
    c = http.client.HTTPConnection(at.hostname, at.port, timeout=180)
    c.request("POST", "/v1/completions", json.dumps(dict(body, model="tiny", temperature=0)), {"Content-Type": "application/json"})
    reply = c.getresponse()
    return reply.status, reply.read().decode()


def prompt(conversation, n):
    return [3 + (conversation * 1009 + i * i * 7 + i * 31) % 300 for i in range(n)]


def agents(url, n, tokens, turns):
    texts, wrong = [[] for _ in range(n)], []

    def converse(k):
        for turn in range(turns):
            status, text = post(url, {"prompt": prompt(k, tokens + 50 * turn), "max_tokens": 8, "ignore_eos": True})
            if status != 200:
                wrong.append(f"conversation {k}, turn {turn}: {status} {text}")
                return
            texts[k].append(json.loads(text)["choices"][0]["text"])

    threads = [threading.Thread(target=converse, args=(k,)) for k in range(n)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong, wrong
    print(json.dumps(texts))


def too_long(url, tokens):
    began = time.monotonic()
    status, text = post(url, {"prompt": prompt(1, tokens), "max_tokens": 8})
    error = json.loads(text)["error"]
    assert status == 400 and error["code"] == "context_length_exceeded" and str(tokens) in error["message"], text
    status, text = post(url, {"prompt": prompt(1, tokens), "max_tokens": 8, "stream": True})
    assert "context_length_exceeded" in text, text
    print(error["message"], f"after {time.monotonic() - began:.1f} s", file=sys.stderr)


{"agents": agents, "too_long": too_long}[sys.argv[1]](sys.argv[2], *map(int, sys.argv[3:]))
