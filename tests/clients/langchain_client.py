"""langchain-openai against `swarm serve`: langchain_client.py URL. Fails by an assertion."""
import sys

from langchain_openai import ChatOpenAI, OpenAIEmbeddings

server = {"base_url": sys.argv[1] + "/v1", "api_key": "none", "model": "tiny"}
chat = ChatOpenAI(temperature=0, max_tokens=12, max_retries=0, timeout=100, **server)
whole = chat.invoke("Name one colour.")
assert whole.content and whole.usage_metadata["output_tokens"] <= 12
assert "".join(c.content for c in chat.stream("Name one colour.")) == whole.content
assert [a.content for a in chat.batch(["Name one colour."] * 3)] == [whole.content] * 3
sky, grass = OpenAIEmbeddings(check_embedding_ctx_length=False, **server).embed_documents(["a sky", "grass"])
assert len(sky) == len(grass) and sky != grass
