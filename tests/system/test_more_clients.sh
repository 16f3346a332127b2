#!/usr/bin/env bash
# Larger programs that speak the OpenAI API, as PyPI has them, against `swarm serve`: the lm-evaluation-harness, whose scores are
# those of `swarm eval`; litellm; and schemathesis, which makes requests from /openapi.json, none of which is answered by a 5xx.
# They are 700 MB of packages and minutes of work: SN_TEST_PACKAGES=few leaves them out.
. "$(dirname "$0")/lib.sh"
[ -n "${SN_TEST_MODEL:-}" ] || skip "text needs SN_TEST_MODEL"
[ "${SN_TEST_PACKAGES:-}" != few ] || skip "lm-eval, litellm and schemathesis do not run with SN_TEST_PACKAGES=few"
lm_eval=$(fetched lm-eval-1 120 'lm-eval[api]==0.4.13' transformers==5.23.0 gguf==0.19.0) || not_fetched lm-eval
litellm=$(fetched litellm-2 90 litellm==1.106.2 mcp==2.3.0) || not_fetched litellm
schemathesis=$(fetched schemathesis-1 60 schemathesis==4.32.5) || not_fetched schemathesis
start server "$bin/swarm" serve --model "$SN_TEST_MODEL" --served-model-name tiny --listen 127.0.0.1:0 --local all --device cpu --max-sessions 4 --ctx 96
wait_ready server
export PYTHONDONTWRITEBYTECODE=1 url="http://${address[server]}"
mkdir "$scratch/tasks"
PYTHONPATH=$lm_eval timeout -k 2 250 python3 "$here/../clients/lm_eval_client.py" "$url" "$bin/swarm" "$SN_TEST_MODEL" "$scratch/tasks" \
  >"$scratch/lm_eval.log" 2>&1 || { tail -n 20 "$scratch/lm_eval.log" >&2; fail "lm-eval"; }
grep '^byte perplexity\|^choices:' "$scratch/lm_eval.log"
cd "$scratch" # where schemathesis leaves its files
PYTHONPATH=$schemathesis timeout -k 2 250 python3 -m schemathesis.cli run "$url/openapi.json" --checks not_a_server_error \
  --phases coverage,fuzzing --max-examples 15 --seed 1 --no-color >"$scratch/schemathesis.log" 2>&1 ||
  { tail -n 40 "$scratch/schemathesis.log" >&2; fail "schemathesis"; }
grep 'generated' "$scratch/schemathesis.log" | tail -n 1
cd "$here"
stop_node server
start agents "$bin/swarm" serve --model "$SN_TEST_MODEL" --served-model-name tiny --listen 127.0.0.1:0 --local all --device cpu --max-sessions 2
wait_ready agents
PYTHONPATH=$litellm LITELLM_LOCAL_MODEL_COST_MAP=True timeout -k 2 200 python3 "$here/../clients/litellm_client.py" "http://${address[agents]}" || fail "litellm"
stop_node agents
echo ok
