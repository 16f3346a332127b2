"""The pages of a running swarm: test_served.py URL PORT_OF_A PID:PORT PID:PORT, where the two processes hold the same blocks 15:30
of 30, and a the others. Both are killed on the way. With PICTURES=FOLDER the screenshots of the README are written there."""
import json
import os
import re
import signal
import sys
import tempfile
import time
import urllib.request

import browser as browsers

ANSWER, FACTS = "article.assistant > .text", "article.assistant .facts"
INJECT = "const s = document.createElement('script'); try { s.textContent = 'window.hacked = 1'; document.body.append(s); } catch {} return window.hacked === undefined"
QUESTION = "Write a short Python function that adds two numbers, and explain it."
PICTURES = os.environ.get("PICTURES")


def sessions(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
        return int(re.search(r"^swarm_node_sessions (\d+)$", page.read().decode(), re.M)[1])


def check(b, url, port, holders):
    b.open(url)
    b.until("the models are there", lambda: b.js("return document.querySelector('#model option') !== null"))
    b.js("localStorage.setItem('swarm.settings', JSON.stringify({system: '', options: {temperature: 0, max_tokens: 300}}))")
    b.begin(QUESTION)
    b.until("some of the answer", lambda: len(b.text(ANSWER)) > 20)
    b.click("#stop")
    b.idle()
    assert "You stopped this answer." in b.text("article.assistant .problem")

    # The node that computes is killed while the answer is written.
    b.click("#new")
    b.begin(QUESTION)
    b.until("some of the answer", lambda: len(b.text(ANSWER)) > 40)
    pid, _ = next(h for h in holders if sessions(h[1]))
    os.kill(pid, signal.SIGKILL)
    b.idle()
    assert not b.text("article.assistant .problem") or "limit of tokens" in b.text("article.assistant .problem"), b.text("article.assistant .problem")
    assert re.search(r"[2-9] hops: a 0:15 → .*[1-9] failovers? survived", b.text(FACTS)), b.text(FACTS)
    kept = b.text(ANSWER)
    if PICTURES:
        b.picture(f"{PICTURES}/pages-chat.png")
    assert b.js(INJECT), "a script that is injected runs"
    b.js("location.reload()")
    b.until("the answer is kept", lambda: b.text(ANSWER) == kept)

    b.open(url + "/swarm")
    b.until_text("#summary", "30 of 30")
    assert b.js("return document.querySelectorAll('.strip li').length") == 30 and b.js("return document.getElementById('gaps').hidden")
    problems = b.js(browsers.AUDIT)
    assert not problems, problems
    assert "cpu" in b.text("#nodes"), b.text("#nodes")
    for other, _ in holders:
        if other != pid:
            os.kill(other, signal.SIGKILL)
    b.until_text("#gaps", "swarm-node --model")
    if PICTURES:
        b.size(1200, 900)
        b.picture(f"{PICTURES}/pages-map.png")
    assert "Blocks 15 to 29" in b.text("#gaps") and "15 of 30" in b.text("#summary"), b.text("#gaps")

    # As the node sees it.
    node = f"http://127.0.0.1:{port}"
    b.open(node + "/swarm")
    b.until_text("#nodes", "(this node)")
    assert "0:15" in b.text("#nodes") and "cpu" in b.text("#nodes") and b.js("return document.getElementById('to-chat').hidden && document.querySelectorAll('.strip li').length === 30")
    assert b.js(INJECT), "a script that is injected runs"
    with urllib.request.urlopen(node + "/api/swarm", timeout=30) as reply:
        seen = json.load(reply)
        assert "require-trusted-types-for" in reply.headers["Content-Security-Policy"]
    assert seen["blocks"] == 30 and seen["coverage"][0]["nodes_per_block"][:15] == [1] * 15 and any(n["name"] == "a" and n["state"] == "online" for n in seen["nodes"]), seen


def main():
    url, port, *holders = sys.argv[1:]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        b = browsers.start(scratch)
        try:
            check(b, url.rstrip("/"), port, [tuple(map(int, h.split(":"))) for h in holders])
            troubles = b.console(("TrustedScript",))
            assert not troubles, troubles
        finally:
            b.end()


main()
