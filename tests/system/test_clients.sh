#!/usr/bin/env bash
# Programs that speak the OpenAI API, as PyPI has them, against `swarm serve`.
. "$(dirname "$0")/lib.sh"
[ -n "${SN_TEST_MODEL:-}" ] || skip "text needs SN_TEST_MODEL"
# The packages are kept beside the programs, and fetched once.
site=$(realpath "$bin")/clients
if [ ! -d "$site/langchain_openai" ]; then
  timeout 120 python3 -m pip install --quiet --no-compile --disable-pip-version-check --root-user-action=ignore --retries 1 \
    --target "$site.new" openai langchain-openai >"$scratch/pip.log" 2>&1 || skip "openai and langchain-openai cannot be fetched: $(tail -n 1 "$scratch/pip.log" | cut -c1-100)"
  rm -rf "$site" && mv "$site.new" "$site"
fi
start server "$bin/swarm" serve --model "$SN_TEST_MODEL" --served-model-name tiny --listen 127.0.0.1:0 --local all --device cpu --max-sessions 4
wait_ready server
export PYTHONPATH=$site PYTHONDONTWRITEBYTECODE=1
for program in openai langchain; do
  timeout -k 2 200 python3 "$here/../clients/${program}_client.py" "http://${address[server]}" || fail "$program"
done
timeout -k 2 200 python3 "$here/../clients/llama_cases.py" "http://${address[server]}" || fail "cases of llama.cpp's tests"
stop_node server
echo ok
