"""litellm against `swarm serve`: litellm_client.py URL. Fails by an assertion."""
import asyncio
import sys

import litellm

server = {"api_base": sys.argv[1] + "/v1", "api_key": "none", "model": "openai/tiny", "timeout": 100, "num_retries": 0}
question = {"messages": [{"role": "user", "content": "Name one colour."}], "temperature": 0, "max_tokens": 8}
whole = litellm.completion(**question, **server)
text = whole.choices[0].message.content
assert text and whole.usage.completion_tokens <= 8
chunks = litellm.completion(**question, stream=True, **server)
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["red", "blue"]}}}
assert litellm.completion(**question, response_format=form, **server).choices[0].message.content in ('"red"', '"blue"')
try:
    litellm.completion(**{**question, "temperature": 9}, **server)
    raise AssertionError("temperature 9 was taken")
except litellm.BadRequestError as error:
    assert "temperature" in str(error)
assert litellm.embedding(input=["a", "b"], **{**server, "encoding_format": "float"}).data[1]["embedding"]

# Agents: tools, though the model's template has none, the call and its result, a limit beyond the context, fields that mean nothing here;
# /v1/responses, also as the bridge from Anthropic's API (Claude Code) asks it.
shell = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"], "additionalProperties": False}
tools = [{"type": "function", "function": {"name": "shell", "description": "Runs a command", "parameters": shell}}]
asked = {"tools": tools, "max_tokens": 64000, "temperature": 0, **server}
said = litellm.completion(messages=[{"role": "user", "content": "List the files."}], tool_choice="required",
                          extra_body={"cache_prompt": True, "enable_thinking": False}, **asked).choices[0].message
assert said.tool_calls[0].function.name == "shell", said
history = [{"role": "user", "content": "List the files."}, said, {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "a.txt"}]
assert litellm.completion(messages=history, **{**asked, "max_tokens": 4}).choices[0].message.content
assert litellm.responses(input="Name one colour.", max_output_tokens=8, store=True, include=["reasoning.encrypted_content"],
                         reasoning={"effort": "low", "summary": "auto"}, **server).output[0].content[0].text
part = {"type": "text", "text": "Name one colour.", "cache_control": {"type": "ephemeral"}}
bridged = asyncio.run(litellm.anthropic.messages.acreate(
    max_tokens=32000, system="Be brief.", messages=[{"role": "user", "content": [part]}], metadata={"user_id": "u"},
    tools=[{"name": "shell", "description": "Runs a command", "input_schema": shell}],
    thinking={"type": "enabled", "budget_tokens": 1024}, **server))
assert bridged["content"] and bridged["stop_reason"] in ("end_turn", "tool_use", "max_tokens"), bridged
