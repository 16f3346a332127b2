#!/usr/bin/env bash
# The pages as `swarm serve` and a node serve them, over a swarm of the real model: answers, a node that is killed in the middle of
# one, a gap on the map (tests/pages/test_served.py).
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
for need in chromium chromedriver; do [ -x "/usr/bin/$need" ] || skip "there is no /usr/bin/$need: install chromium and chromium-driver"; done
python3 -c 'import selenium' 2>/dev/null || skip "python3-selenium is not installed"
[ -n "${SN_TEST_MODEL:-}" ] || skip "SN_TEST_MODEL names no real model"
start_node a "$SN_TEST_MODEL" 0:15 --metrics 0
wait_ready a
for name in b c; do start_node $name "$SN_TEST_MODEL" 15:30 --metrics 0 --join "${address[a]}"; done
wait_ready b c
start server "$bin/swarm" serve --model "$SN_TEST_MODEL" --join "${address[a]}" --listen 127.0.0.1:0
wait_ready server
port() { sed -n 's/^ready:.* metrics=\([0-9]*\).*/\1/p' "$scratch/$1.out"; }
url=$(sed -n 's/^ready:.* url=\([^ ]*\).*/\1/p' "$scratch/server.out")
timeout 400 python3 "$here/../pages/test_served.py" "$url" "$(port a)" "${pid[b]}:$(port b)" "${pid[c]}:$(port c)" >"$scratch/pages.err" 2>&1 ||
  fail "the pages do not work as they are served"
