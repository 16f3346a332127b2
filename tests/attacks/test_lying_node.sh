#!/usr/bin/env bash
# A node that lies, below a server with audits: a stream whose sent text is found wrong ends with an error that says so, a whole reply
# has the right text, and the node is not used again. The server checks with the model's file; another node joins when
# its sessions are open.
. "$(dirname "${BASH_SOURCE[0]}")/../system/lib.sh"
[ -x "$bin/tests/attack_lying_node" ] || skip "attack_lying_node is not built"
text_model
model=$scratch/model
answer=(--prompt 7-3 --max-tokens 60 --ignore-eos)
succeeds "$bin/swarm" generate --model "$model" --local all "${answer[@]}" --json
right=$(query "$scratch/run.out" 'd["text"]')

start lying env SN_LIES_EVERY=28 "$bin/tests/attack_lying_node" --model "$model" --blocks all --name lying --threads 1 \
  --listen 127.0.0.1:0 --kv-memory 64MiB --device cpu
wait_ready lying
start server "$bin/swarm" serve --model "$model" --served-model-name tiny --join "${address[lying]}" --listen 127.0.0.1:0 --max-sessions 2 \
  --audit 0.2 --audit-seed 4 --audit-local --reroute-every 0 --log-level info
wait_ready server
cat >"$scratch/client.py" <<'END'
import json, sys
sys.path.insert(0, sys.argv[1])
from serve_client import Stream, metric, post, text_of
_, _, what, url, *more = sys.argv
request = {"prompt": "7-3", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
if what == "open":  # a session at the lying node for each of two prompts
    for prompt in ("7-3", "something else"):
        reply = post(url, "/v1/completions", **request | {"prompt": prompt, "max_tokens": 2})
        assert reply["swarm"]["hops"][0]["node"].startswith("lying@") and reply["swarm"]["checked"] is True, reply
else:
    right, = more
    events, text = [], ""
    for line in Stream(url, "/v1/completions", **request).lines():
        if line.startswith("data: "):
            events.append(line[6:])
    assert events[-1] == "[DONE]", events
    error = json.loads(events[-2])["error"]
    assert error["code"] == "audit_failed" and "audit" in error["message"], error
    text = "".join(text_of(json.loads(e)) for e in events[:-2])
    assert text and not right.startswith(text), "no wrong text was sent: the test shows nothing"
    assert metric(url, "retractions_total") == 1
    for _ in range(2):  # the other session was idle: it ended with the failure, and no answer begins at that node
        reply = post(url, "/v1/completions", **request)
        assert reply["choices"][0]["text"] == right, (reply, right)
        assert reply["usage"]["completion_tokens"] == 60, reply
        assert not any(h["node"].startswith("lying@") for h in reply["swarm"]["hops"]), reply
END
timeout -k 2 120 python3 "$scratch/client.py" "$here" open "http://${address[server]}" || fail "no session over the lying node"
start_node honest "$model" all --device cpu --join "${address[lying]}"
wait_ready honest
timeout -k 2 120 python3 "$scratch/client.py" "$here" ask "http://${address[server]}" "$right" || fail "the lie"
[ "$(grep -c 'warn  audit failed text=node ' "$scratch/server.err")" = 1 ] || fail "the log does not name the lying node once"
stop_node server
