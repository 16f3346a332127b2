#!/usr/bin/env bash
# Programs that speak the OpenAI API, as PyPI has them, against `swarm serve`.
. "$(dirname "$0")/lib.sh"
[ -n "${SN_TEST_MODEL:-}" ] || skip "text needs SN_TEST_MODEL"
site=$(fetched openai-1 120 openai==3.54.0 langchain-openai==1.7.3) || not_fetched "openai and langchain-openai"
start server "$bin/swarm" serve --model "$SN_TEST_MODEL" --served-model-name tiny --listen 127.0.0.1:0 --local all --device cpu --max-sessions 4
wait_ready server
export PYTHONPATH=$site PYTHONDONTWRITEBYTECODE=1
for program in openai langchain; do
  timeout -k 2 200 python3 "$here/../clients/${program}_client.py" "http://${address[server]}" || fail "$program"
done
timeout -k 2 200 python3 "$here/../clients/llama_cases.py" "http://${address[server]}" || fail "cases of llama.cpp's tests"
stop_node server

# Tools, by a template that shows them; the snippet of the README, whose answer ends with the context.
cat >"$scratch/tools.jinja" <<'END'
{% for t in tools or [] %}{{ t | tojson }}
{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}
END
start server "$bin/swarm" serve --model "$SN_TEST_MODEL" --served-model-name tiny --listen 127.0.0.1:0 --local all --device cpu --max-sessions 2 \
  --ctx 512 --template "$scratch/tools.jinja"
wait_ready server
timeout -k 2 200 python3 "$here/../clients/openai_client.py" "http://${address[server]}" tools || fail "tools of openai"
sed -n '/^from openai import OpenAI/,/^```/{/^```/d;p}' "$here/../../README.md" | sed "s|127.0.0.1:8080|${address[server]}|; s|SmolLM2-135M-Instruct.Q4_1|tiny|" >"$scratch/snippet.py"
succeeds python3 "$scratch/snippet.py"
grep -q '[a-z]' "$scratch/run.out" || fail "the snippet of the README prints nothing"
stop_node server
echo ok
