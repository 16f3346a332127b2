"""The openai package against `swarm serve`: openai_client.py URL [tools]. Fails by an assertion."""
import asyncio
import sys
from typing import Literal

import openai
from pydantic import BaseModel

url, model = sys.argv[1] + "/v1", "tiny"
client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=100)
question = [{"role": "user", "content": "Name one colour."}]
options = {"model": model, "temperature": 0, "max_tokens": 12}


def whole_and_streamed():
    assert [m.id for m in client.models.list()] == [model] and client.models.retrieve(model).id == model
    whole = client.chat.completions.create(messages=question, **options)
    text = whole.choices[0].message.content
    assert text and whole.usage.completion_tokens <= 12 and whole.choices[0].finish_reason in ("stop", "length")
    chunks = list(client.chat.completions.create(messages=question, stream=True, stream_options={"include_usage": True}, **options))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    return text


async def many(text):
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=100) as several:
        answers = await asyncio.gather(*(several.chat.completions.create(messages=question, **options) for _ in range(6)))
        assert [a.choices[0].message.content for a in answers] == [text] * 6
        stream = await several.chat.completions.create(messages=question, stream=True, **options)
        assert "".join([c.choices[0].delta.content or "" async for c in stream]) == text
        stream = await several.chat.completions.create(messages=question, stream=True, **options)
        async for _ in stream:
            break
        await stream.close()  # a client that leaves


class Colour(BaseModel):
    name: str
    red: int
    known: bool


def structured():
    answer = client.chat.completions.parse(messages=question, response_format=Colour, model=model, temperature=0, max_tokens=120)
    assert isinstance(answer.choices[0].message.parsed, Colour), answer
    text = client.chat.completions.create(messages=question, model=model, temperature=0, max_tokens=300, logprobs=True, top_logprobs=3,
                                          response_format={"type": "json_object"}).choices[0]
    assert len(text.logprobs.content[0].top_logprobs) == 3


def other_routes(text):
    response = client.responses.create(model=model, input="Name one colour.", temperature=0, max_output_tokens=16)
    assert response.output_text.startswith(text[:8]), (response.output_text, text)
    with client.responses.stream(model=model, input="Name one colour.", temperature=0, max_output_tokens=16) as stream:
        assert "".join(e.delta for e in stream if e.type == "response.output_text.delta") == response.output_text
    ids = client.completions.create(model=model, prompt=["The sky is", "Grass is"], max_tokens=4, temperature=0, logprobs=1, echo=True)
    assert [c.text.split()[0] for c in ids.choices] == ["The", "Grass"] and ids.choices[0].logprobs.token_logprobs[0] is None
    vectors = client.embeddings.create(model=model, input=["a sky", "a sky", "grass"]).data
    assert vectors[0].embedding == vectors[1].embedding != vectors[2].embedding


def refusals():
    tool = {"type": "web_search", "web_search": {}}
    for wrong in {"temperature": 9}, {"n": 0}, {"model": "another"}, {"tools": [tool]}, {"logit_bias": {"-1": 1}}, {"max_tokens": -2}:
        try:
            client.chat.completions.create(**({"messages": question} | options | wrong))
            raise AssertionError(f"{wrong} was taken")
        except (openai.BadRequestError, openai.NotFoundError) as e:
            assert e.body["message"] and (e.body["param"] or "model" in wrong), (wrong, e.body)


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Paris", "Rome"]
    hours: bool


def tools():
    """A call that is asked for, whole and streamed, and the answer to its result; a model of any size writes it right."""
    asked = {"messages": question, "tools": [openai.pydantic_function_tool(Weather)], "tool_choice": "required", "model": model,
             "temperature": 0, "max_tokens": 80}
    said = client.chat.completions.parse(**asked).choices[0]
    call = said.message.tool_calls[0]
    assert said.finish_reason == "tool_calls" and call.function.name == "Weather" and isinstance(call.function.parsed_arguments, Weather), said
    with client.chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert streamed.function.arguments == call.function.arguments and streamed.function.name == "Weather", streamed
    after = question + [said.message, {"role": "tool", "tool_call_id": call.id, "content": "It rains."}]
    answer = client.chat.completions.create(**asked | {"messages": after, "tool_choice": "none", "max_tokens": 8}).choices[0].message
    assert answer.content and not answer.tool_calls, answer


if sys.argv[2:] == ["tools"]:
    tools()
    sys.exit()
said = whole_and_streamed()
asyncio.run(many(said))
structured()
other_routes(said)
refusals()
