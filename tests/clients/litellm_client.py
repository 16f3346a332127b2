"""litellm against `swarm serve`: litellm_client.py URL. Fails by an assertion."""
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
