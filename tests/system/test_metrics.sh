#!/usr/bin/env bash
# A node's page for Prometheus: the format, and the values.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$fixtures/golden/llama
golden_ids llama "$scratch/ids" 8
start_node a "$model" 0:4 --metrics 0
wait_ready a
port=$(sed -n 's/.* metrics=\([0-9]*\)$/\1/p' "$scratch/a.out")
succeeds "$bin/swarm" generate --model "$model" --join "${address[a]}" --ids-file "$scratch/ids" --max-tokens 5 --ignore-eos

# scrape FILE: checks the page line by line, and writes it to FILE as {"name{labels}": value}.
scrape() {
  python3 - "$port" "$1" <<'END' || fail "the page is not well formed"
import http.client, json, re, sys
c = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=10)
c.request("GET", "/metrics")
answer = c.getresponse()
assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"), answer.headers
text = answer.read().decode()
assert text.endswith("\n")
helped, types, values = set(), {}, {}
for line in text.splitlines():
    if m := re.fullmatch(r"# HELP ([a-z_]+) (\S.*)", line):
        assert m[1] not in helped
        helped.add(m[1])
    elif m := re.fullmatch(r"# TYPE ([a-z_]+) (counter|gauge|histogram)", line):
        assert m[1] in helped and m[1] not in types
        types[m[1]] = m[2]
        assert m[1].endswith("_total") == (m[2] == "counter"), line
    else:
        m = re.fullmatch(r'([a-z_]+)(\{[a-z_]+="(?:[^"\\]|\\[\\"n])*"(?:,[a-z_]+="(?:[^"\\]|\\[\\"n])*")*\})? ([0-9.]+)', line)
        assert m, line
        family = re.sub("_(bucket|sum|count)$", "", m[1]) if m[1] not in types else m[1]
        assert family == list(types)[-1], line  # a family's lines are together, after its type
        assert m[1] + (m[2] or "") not in values, line
        values[m[1] + (m[2] or "")] = float(m[3])
for name, kind in types.items():
    if kind == "histogram":
        buckets = [v for k, v in values.items() if k.startswith(name + "_bucket{")]
        assert buckets == sorted(buckets) and buckets[-1] == values[name + "_count"], name
        assert list(k for k in values if k.startswith(name + "_bucket"))[-1].endswith('{le="+Inf"}')
    assert re.search("_(total|bytes|seconds|info)$", name) or kind == "gauge", name
json.dump(values, open(sys.argv[2], "w"))
END
}
value() { query "$scratch/values" "d['swarm_node_$1']"; }

for ((i = 0; i < 1200; i++)); do # the client ends before its session is closed
  scrape "$scratch/values"
  [ "$(value sessions)" = 0.0 ] && break
  sleep 0.05
done
[ "$(value tokens_total)" = 12.0 ] && [ "$(value steps_total)" = 5.0 ] && [ "$(value step_seconds_count)" = 5.0 ] ||
  fail "not 8 prompt tokens and 4 more in 5 steps: $(cat "$scratch/values")"
[ "$(value 'refusals_total{kind="refused"}')" = 0.0 ] || fail "refusals are counted although there were none"
stop_node a
[ "$(value 'quota_refusals_total{quota="kv"}')" = 0.0 ] || fail "quota refusals are counted without a quota"
start_node b "$model" 0:4 --metrics "127.0.0.1:$port" --client-kv 1KiB
wait_ready b
# The map of the swarm as the node sees it: this node lacks no block, a node of three of the four blocks names the gap.
start_node c "$model" 1:4 --metrics 0
wait_ready c
python3 - "$port" "$(sed -n 's/.* metrics=\([0-9]*\)$/\1/p' "$scratch/c.out")" "${address[c]}" <<'END' || fail "the map of the swarm is not as it should be"
import http.client, json, sys, time
def get(port, path, method="GET"):
    c = http.client.HTTPConnection("127.0.0.1", int(port), timeout=10)
    c.request(method, path)
    answer = c.getresponse()
    if answer.status == 503:  # the node had no time to make a map
        time.sleep(0.1)
        return get(port, path, method)
    return answer.status, answer.headers, answer.read().decode()
for path, kind in (("/swarm", "text/html; charset=utf-8"), ("/pages/swarm.js", "text/javascript; charset=utf-8"), ("/api/swarm", "application/json")):
    status, headers, _ = get(sys.argv[1], path)
    assert status == 200 and headers["Content-Type"] == kind and "script-src 'self'" in headers["Content-Security-Policy"], (path, status, headers)
for path in ("/", "/swarm/", "/pages/", "/pages/../swarm", "/v1/models"):
    assert get(sys.argv[1], path)[0] == 404, path
assert get(sys.argv[1], "/api/swarm", "POST")[0] == 405
for _ in range(600): # until both have announced what they serve
    whole, part = (json.loads(get(port, "/api/swarm")[2]) for port in sys.argv[1:3])
    if all(m["nodes"] and m["nodes"][0]["state"] == "online" for m in (whole, part)): break
    time.sleep(0.1)
assert all(m["nodes"][0]["device"] == "cpu" for m in (whole, part)), whole
assert whole["blocks"] == 4 and whole["gaps"] == [] and whole["coverage"][0]["nodes_per_block"] == [1] * 4, whole
node, = whole["nodes"]
assert node["id"] == whole["self"] and node["name"] == "b" and node["state"] == "online" and node["blocks"] == "0:4" and node["kv_bytes_free"] > 0, node
assert whole["given"] == {"hours": whole["given"]["hours"], "tokens": 0, "sessions": 0, "weights_bytes": 0, "relayed_bytes": 0} and 0 < whole["given"]["hours"] < 1, whole
assert part["coverage"][0]["nodes_per_block"] == [0, 1, 1, 1], part
assert part["gaps"] == [{"blocks": "0:1", "command": "swarm-node --model PATH --blocks 0:1 --join " + sys.argv[3]}], part
END
# Of a node that has joined it: the way to it, its speed, what it offers.
mkdir "$scratch/adapters" && cp -r "$fixtures/peft/lora/begin" "$scratch/adapters/one"
start_node d "$model" 1:4 --join "${address[c]}" --adapters "$scratch/adapters"
wait_ready d
python3 - "$(sed -n 's/.* metrics=\([0-9]*\)$/\1/p' "$scratch/c.out")" <<'END' || fail "the map says too little of another node"
import json, sys, time, urllib.error, urllib.request
def node(): # as c sees it
    try:
        nodes = json.load(urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/api/swarm", timeout=60))["nodes"]
    except urllib.error.HTTPError: # it had no time to make a map
        return {}
    return next((n for n in nodes if n["name"] == "d"), {})
for _ in range(600):
    seen = node()
    if seen.get("rtt_ms", 0) > 0 and seen["tokens_per_s"] > 0: break
    time.sleep(0.1)
assert seen["rtt_ms"] > 0 and seen["tokens_per_s"] > 0 and seen["decode_us"] > 0 and seen["prompt_tokens_per_s"] > 0, seen
assert len(seen["adapters"]) == 1 and seen["adapters"][0]["name"].startswith("@"), seen
END
stop_node d
stop_node c
refuses 1 "metrics 127.0.0.1:$port: cannot listen there" "$bin/swarm-node" --model "$model" --blocks all --listen 127.0.0.1:0 \
  --metrics "127.0.0.1:$port"
refuses 2 "metrics nowhere: write HOST:PORT" "$bin/swarm-node" --model "$model" --blocks all --listen 127.0.0.1:0 --metrics nowhere
run "$bin/swarm" generate --model "$model" --join "${address[b]}" --ids-file "$scratch/ids" --max-tokens 5 --timeout 10 --max-retries 1
[ $rc = 1 ] || fail "8 tokens are accepted where the quota allows none, exit code $rc"
i=0
until scrape "$scratch/values" && [ "$(value 'quota_refusals_total{quota="kv"}')" != 0.0 ]; do
  ((i++ < 400)) || fail "refusals by the quota are not counted: $(cat "$scratch/values")"
  sleep 0.05
done
[ "$(value 'refusals_total{kind="retry"}')" = "$(value 'quota_refusals_total{quota="kv"}')" ] || fail "other refusals are counted as refusals by the quota"
stop_node b
