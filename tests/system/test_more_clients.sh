#!/usr/bin/env bash
# Larger programs that speak the OpenAI API, as PyPI has them, against `swarm serve`: the lm-evaluation-harness, whose scores are
# those of `swarm eval`; litellm; and schemathesis, which makes requests from /openapi.json, none of which is answered by a 5xx.
# They are 700 MB of packages and minutes of work: SN_TEST_CLIENTS=few leaves them out.
. "$(dirname "$0")/lib.sh"
[ -n "${SN_TEST_MODEL:-}" ] || skip "text needs SN_TEST_MODEL"
[ "${SN_TEST_CLIENTS:-}" != few ] || skip "lm-eval, litellm and schemathesis do not run with SN_TEST_CLIENTS=few"
# The packages are kept beside the programs, and fetched once.
site=$(realpath "$bin")/more_clients
fetch() { # NAME PACKAGE...
  [ -d "$site/$1" ] && return
  timeout 150 python3 -m pip install --quiet --no-compile --disable-pip-version-check --root-user-action=ignore --retries 1 \
    --target "$site/$1.new" "${@:2}" >"$scratch/pip.log" 2>&1 || skip "$1 cannot be fetched: $(tail -n 1 "$scratch/pip.log" | cut -c1-100)"
  mv "$site/$1.new" "$site/$1"
}
fetch lm_eval 'lm-eval[api]' transformers gguf
fetch litellm litellm
fetch schemathesis schemathesis
start server "$bin/swarm" serve --model "$SN_TEST_MODEL" --served-model-name tiny --listen 127.0.0.1:0 --local all --device cpu --max-sessions 4 --ctx 96
wait_ready server
export PYTHONDONTWRITEBYTECODE=1 url="http://${address[server]}"
mkdir "$scratch/tasks"
PYTHONPATH=$site/lm_eval timeout -k 2 400 python3 "$here/../clients/lm_eval_client.py" "$url" "$bin/swarm" "$SN_TEST_MODEL" "$scratch/tasks" \
  >"$scratch/lm_eval.log" 2>&1 || { tail -n 20 "$scratch/lm_eval.log" >&2; fail "lm-eval"; }
grep '^byte perplexity' "$scratch/lm_eval.log"
PYTHONPATH=$site/litellm LITELLM_LOCAL_MODEL_COST_MAP=True timeout -k 2 200 python3 "$here/../clients/litellm_client.py" "$url" || fail "litellm"
cd "$scratch" # where schemathesis leaves its files
PYTHONPATH=$site/schemathesis timeout -k 2 500 python3 -m schemathesis.cli run "$url/openapi.json" --checks not_a_server_error \
  --phases coverage,fuzzing --max-examples 15 --seed 1 --no-color >"$scratch/schemathesis.log" 2>&1 ||
  { tail -n 40 "$scratch/schemathesis.log" >&2; fail "schemathesis"; }
grep 'generated' "$scratch/schemathesis.log" | tail -n 1
cd "$here"
stop_node server
echo ok
