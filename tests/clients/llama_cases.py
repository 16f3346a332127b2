"""Cases of llama.cpp's tests of its server (tools/server/tests/unit, as llama-cpp-python 0.3.36 has them), in our words:
llama_cases.py URL. Fails by an assertion. What of each file, with its number of functions, is done here, or in the test that is named:

- test_basic 8: health, models. Not: /props, /slots, aliases, several addresses, no pages
- test_chat_completion 24: replies, streams, parts of content, cached tokens, response formats, wrong bodies,
  log-probabilities, biases, n, too long a prompt. Not: grammars in GBNF, json_schema as a field of its own,
  prefilled answers, /apply-template, token counts, timings, progress and verbose fields: refused, or 404
- test_completion 24: text, stream, stop strings, seeds, ids and lists of prompts, many at once with equal texts,
  log-probabilities; a client that leaves (tests/system/test_serve.sh); cache_prompt is ignored. Not: images,
  response_fields, n_probs (here logprobs), slots
- test_embedding 17: texts, ids, lists of both, wrong inputs, too long ones, base64, usage. Not: other poolings than
  the mean, content for input
- test_ignore_eos 2, test_tokenize 3: all
- test_ctx_shift 4: too long a prompt is refused. Not: shifting, which no model was trained for
- test_security 12: keys, public routes, origins (tests/system/test_serve.sh, tests/unit/gateway/test_access.c). Not: keys
  in Anthropic's header, origins that are reflected, a proxy, files of the server
- test_compat_oai_responses 3: whole and streamed (tests/clients/openai_client.py). Not: telemetry
- test_metrics 9: Prometheus's format; other names
- test_tool_call 7, test_template 3: forced calls, none, thoughts (tests/unit/gateway/test_openai_constraint.c,
  tests/unit/gateway/test_openai_reply.c), the date of templates (tests/unit/text/test_jinja.c). Not: what only large models
  answer well
- test_speculative 7: a draft changes no text (tests/unit/cli/test_draft.c). Not: options of a request
- test_lora 3: Not: an adapter is an option of the server
- test_infill 4, test_rerank 6, test_slot_save 9, test_stream 3, test_kv_keep_only_active 2, test_router 16,
  test_sleep 4, test_proxy 4, test_mcp_servers 21, test_tools_builtin 18, test_vision_api 7, test_compat_anthropic
  29, test_compat_gcp 2: Not: routes and features that the server does not have
"""
import json
import re
import sys
import threading
import urllib.error
import urllib.request

URL = sys.argv[1]
HELLO = [{"role": "user", "content": "Say hi"}]


def request(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(URL + path, data, method=method), timeout=200) as reply:
            status, text = reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    return status, json.loads(text) if text.startswith("{") else text


def good(method, path, body=None):
    status, reply = request(method, path, body)
    assert status == 200, (path, body, reply)
    return reply


def refused(path, body, code=None):
    status, reply = request("POST", path, body)
    assert status == 400 and code in (None, reply["error"]["code"]), (path, body, reply)


def events(path, body):
    return [json.loads(line[6:]) for line in good("POST", path, {**body, "stream": True}).split("\n") if line[:7] == "data: {"]


def chat(**body):
    return good("POST", "/v1/chat/completions", {"messages": HELLO, "max_tokens": 8, "temperature": 0, **body})


def complete(**body):
    reply = good("POST", "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, **body})
    return [choice["text"] for choice in reply["choices"]]


def tokens(text, **more):
    return good("POST", "/tokenize", {"content": text, **more})["tokens"]


def embed(given, **more):
    return good("POST", "/v1/embeddings", {"input": given, **more})


def chats():
    reply = chat()
    choice = reply["choices"][0]
    assert reply["usage"]["completion_tokens"] <= 8 and choice["finish_reason"] in ("stop", "length")
    chat(messages=[{"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "this"}]}])
    streamed = events("/v1/chat/completions", {"messages": HELLO, "max_tokens": 8, "temperature": 0})
    deltas = [event["choices"][0]["delta"] for event in streamed]
    assert deltas[0]["role"] == "assistant" and all("role" not in delta for delta in deltas[1:])
    assert len({event["id"] for event in streamed}) == 1 and "content" not in deltas[-1]
    assert "".join(delta.get("content") or "" for delta in deltas) == choice["message"]["content"]
    assert len(chat(n=2, temperature=1)["choices"]) == 2
    assert chat(ignore_eos=True, max_tokens=40)["usage"]["completion_tokens"] == 40
    usages = [chat(messages=[{"role": "user", "content": "1 2 3 4 5 " + last}])["usage"] for last in "669"]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached[1] == usages[1]["prompt_tokens"] - 1 and 0 < cached[2] < cached[1], cached


def forms():
    for schema, text in [({"const": "foooooo"}, '"foooooo"'), ({"type": "array", "items": {"type": "integer"}}, r"^\[")]:
        form = {"type": "json_schema", "json_schema": {"schema": schema}}
        assert re.search(text, chat(response_format=form)["choices"][0]["message"]["content"])
    assert chat(response_format={"type": "json_object"})["choices"][0]["message"]["content"][0] == "{"
    for schema in [123, {"type": 123}, {"type": "hiccup"}]:
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        refused("/v1/chat/completions", {"messages": HELLO, "response_format": form})
    refused("/v1/chat/completions", {"messages": HELLO, "response_format": {"type": "sound"}})


def what_is_wrong():
    wrong = [None, "string", [123], [{}], [{"role": 123}], [{"role": "system", "content": 123}], HELLO + [{}]]
    for messages in wrong:
        refused("/v1/chat/completions", {"messages": messages})
    for prompt in [[], [[]], {"a": 1}, 12, [True]]:
        refused("/v1/completions", {"prompt": prompt})
    for given in [[], [[]], None, {"a": 1}, 12]:
        refused("/v1/embeddings", {"input": given})
    long = [{"role": "user", "content": "word " * 9000}]
    for stream in (True, False):
        refused("/v1/chat/completions", {"messages": long, "stream": stream}, "context_length_exceeded")
    refused("/v1/embeddings", {"input": "word " * 9000}, "context_length_exceeded")


def logprobs():
    asked = {"logprobs": True, "top_logprobs": 10, "max_tokens": 5}
    choice = chat(**asked)["choices"][0]
    listed = choice["logprobs"]["content"]
    assert "".join(token["token"] for token in listed) == choice["message"]["content"]
    assert all(token["logprob"] <= 0 and token["bytes"] and len(token["top_logprobs"]) == 10 for token in listed)
    streamed = [event["choices"][0] for event in events("/v1/chat/completions", {"messages": HELLO, "temperature": 0, **asked})]
    assert listed == [token for part in streamed for token in (part.get("logprobs") or {}).get("content") or []]
    excluded = {str(token): -100 for token in tokens(" the The a is")}
    text = chat(logit_bias=excluded, max_tokens=24)["choices"][0]["message"]["content"]
    assert not any(f" {word} " in text for word in ("the", "The", "a", "is")), text


def completions():
    text = complete(max_tokens=20)[0]
    streamed = events("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0})
    assert "".join(event["choices"][0]["text"] for event in streamed) == text
    stopped = complete(max_tokens=20, stop=[text.split()[3]])[0]
    assert text.startswith(stopped) and text.split()[3] not in stopped
    assert len({complete(seed=42, temperature=1)[0] for _ in range(3)}) == 1
    assert len({complete(seed=seed, temperature=1)[0] for seed in range(4)}) > 1
    ids = tokens("Once upon a time", add_special=True)
    assert complete(prompt=ids) == complete() and complete(prompt=[ids, "Once upon a time"]) == complete() * 2
    results = {}
    threads = [threading.Thread(target=lambda i=i: results.update({i: complete(prompt=f"Number {i % 3}")})) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(results[i] == results[i + 3] for i in range(3)), results


def embeddings():
    assert [len(embed(given)["data"]) for given in ("a", ["a", "b", "c"], [12, 34], [[12, 34], [1, 2]], ["s", [12, 34]])] == [1, 3, 1, 2, 2]
    vector = embed("a")["data"][0]["embedding"]
    assert abs(sum(x * x for x in vector) - 1) < 1e-3
    same = embed(["x"] * 5)
    assert all(one["embedding"] == same["data"][0]["embedding"] for one in same["data"])
    assert same["usage"]["prompt_tokens"] == same["usage"]["total_tokens"] == 5 * len(tokens("x", add_special=True))
    assert isinstance(embed("a", encoding_format="base64")["data"][0]["embedding"], str)


def the_rest():
    sentence = "What is the capital of France ? é🎉"
    assert good("POST", "/detokenize", {"tokens": tokens(sentence)})["content"] == sentence
    assert all(set(token) == {"id", "piece"} for token in tokens(sentence, with_pieces=True))
    assert good("GET", "/health")["status"] == "ok" and good("GET", "/v1/models")["data"][0]["id"] == "tiny"
    assert "swarm_serve_requests_total" in good("GET", "/metrics")


for case in (chats, forms, what_is_wrong, logprobs, completions, embeddings, the_rest):
    case()
