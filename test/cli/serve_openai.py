#!/usr/bin/env python3
"""The official openai package, as it comes, against a server whose model has a chat template.
usage: serve_openai.py URL KEY
"""
import asyncio
import sys

import openai

URL, KEY = sys.argv[1] + "/v1", sys.argv[2]
client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)
MODEL = client.models.list().data[0].id
PROMPT = "The capital of France is"
HI = [{"role": "system", "content": "Short."}, {"role": "user", "content": PROMPT}]


def models():
    assert client.models.retrieve(MODEL).id == MODEL
    refuses(openai.NotFoundError, lambda: client.models.retrieve("other"), "model")


def completions():
    r = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=8, temperature=0, logprobs=2, n=2)
    a, b = r.choices
    assert a.text == b.text and a.finish_reason == "length" and "".join(a.logprobs.tokens) == a.text
    assert all(max(t.values()) == p for t, p in zip(a.logprobs.top_logprobs, a.logprobs.token_logprobs))
    assert r.usage.completion_tokens == 16 and r.usage.total_tokens == r.usage.prompt_tokens + 16
    stream = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=8, temperature=0, stream=True,
                                       stream_options={"include_usage": True})
    chunks = list(stream)
    assert "".join(c.choices[0].text for c in chunks if c.choices) == a.text
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 8
    r = client.completions.create(model=MODEL, prompt=[PROMPT, "In the"], max_tokens=200, temperature=0, stop=["capital", "qq"])
    assert len(r.choices) == 2 and r.choices[0].finish_reason == "stop" and "capital" not in r.choices[0].text
    one, two = (client.completions.create(model=MODEL, prompt="x", max_tokens=20, seed=5, extra_body={"top_k": 50, "min_p": 0.01})
                for _ in range(2))
    assert one.choices[0].text == two.choices[0].text


def chat():
    r = client.chat.completions.create(model=MODEL, messages=HI, max_completion_tokens=8, temperature=0, logprobs=True, top_logprobs=3)
    c = r.choices[0]
    assert c.message.role == "assistant" and c.finish_reason == "length"
    assert "".join(t.token for t in c.logprobs.content).lstrip() == c.message.content.lstrip()
    assert all(len(t.top_logprobs) == 3 and t.top_logprobs[0].logprob == t.logprob for t in c.logprobs.content)
    text = ""
    for chunk in client.chat.completions.create(model=MODEL, messages=HI, max_tokens=8, temperature=0, stream=True):
        text += chunk.choices[0].delta.content or ""
    assert text == c.message.content
    with client.chat.completions.stream(model=MODEL, messages=HI, max_tokens=8, temperature=0) as stream:
        assert "".join(e.delta for e in stream if e.type == "content.delta") == text


def refuses(kind, call, param, code=None):
    try:
        call()
    except kind as e:
        assert e.param == param and (code is None or e.code == code), (e, e.param, e.code)
        return
    raise AssertionError(f"no {kind.__name__}")


def errors():
    def complete(**more):
        return lambda: client.completions.create(**{"model": MODEL, "prompt": PROMPT, **more})
    refuses(openai.NotFoundError, complete(model="gpt-4"), "model", "model_not_found")
    refuses(openai.BadRequestError, complete(prompt="word " * 3000), "prompt", "context_length_exceeded")
    refuses(openai.BadRequestError, complete(temperature=-1), "temperature")
    refuses(openai.BadRequestError, complete(extra_body={"no_such": 1}), "no_such", "unknown_field")
    refuses(openai.BadRequestError, lambda: client.chat.completions.create(
        model=MODEL, messages=HI, response_format={"type": "json_object"}), "response_format")
    refuses(openai.BadRequestError, lambda: client.chat.completions.create(model=MODEL, messages=HI, tools=[
        {"type": "function", "function": {"name": "f", "parameters": {}}}]), "tools")
    other = openai.OpenAI(base_url=URL, api_key="wrong", max_retries=0)
    refuses(openai.AuthenticationError, lambda: other.models.list(), None, "invalid_api_key")


async def side_by_side():
    many = openai.AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0)

    async def one(i):
        r = await many.chat.completions.create(model=MODEL, messages=HI, max_tokens=4 + i % 5, temperature=0)
        return r.choices[0].message.content
    texts = await asyncio.gather(*(one(i) for i in range(40)))
    assert all(texts[i] == texts[i % 5] for i in range(40))
    stream = await many.chat.completions.create(model=MODEL, messages=HI, max_tokens=400, stream=True)
    async for _ in stream:
        break
    await stream.close()


for f in (models, completions, chat, errors):
    f()
    print("ok", f.__name__)
asyncio.run(side_by_side())
print("ok side_by_side with openai", openai.__version__)
