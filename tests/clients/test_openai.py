"""The package `openai`, as its users write programs with it."""
import json
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import KEY, SCRIPTS, THOUGHTS, TIME, WEATHER

openai = pytest.importorskip("openai", reason="the package openai is not installed (pip install openai)")

PROMPT = "Once upon a time"
HELLO = [{"role": "user", "content": "introduce yourself"}]
TOOLS = [{"type": "function", "function": {"name": name, "description": name, "parameters": {"type": "object", "properties": {}}}}
         for name in ("get_weather", "get_time")]


def client_of(url: str, **options: Any) -> Any:
    return openai.OpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0, **options)


@pytest.fixture
def client(tales: str) -> Any:
    return client_of(tales)


@pytest.fixture
def script(scripted: str) -> Any:
    """Asks the scripted model for one of its answers."""
    def ask(name: str, **options: Any) -> Any:
        extra = {"chat_template_kwargs": {"script": name}} | options.pop("extra_body", {})
        options = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0} | options
        return client_of(scripted).chat.completions.create(model="scripted", extra_body=extra, **options)
    return ask


def texts(stream: Iterator[Any], n: int = 1) -> list[str]:
    result = [""] * n
    for chunk in stream:
        for choice in chunk.choices:
            result[choice.index] += choice.text if hasattr(choice, "text") else choice.delta.content or ""
    return result


def test_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("a/b")


def test_completions(client: Any) -> None:
    ask = {"model": "tiny", "prompt": PROMPT, "max_tokens": 20, "temperature": 0}
    whole = client.completions.create(**ask)
    assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 20
    assert texts(client.completions.create(**ask, stream=True)) == [whole.choices[0].text]
    last = list(client.completions.create(**ask, stream=True, stream_options={"include_usage": True}))[-1]
    assert last.choices == [] and last.usage.completion_tokens == 20
    with_logprobs = client.completions.create(**ask, logprobs=2, echo=True).choices[0]
    assert "".join(with_logprobs.logprobs.tokens) == with_logprobs.text == PROMPT + whole.choices[0].text
    assert with_logprobs.logprobs.token_logprobs[0] is None


def test_several_prompts_and_choices(client: Any) -> None:
    ask = {"model": "tiny", "prompt": [PROMPT, "The fox"], "n": 2, "max_tokens": 12, "seed": 7, "temperature": 1}
    first = client.completions.create(**ask)
    assert [choice.index for choice in first.choices] == [0, 1, 2, 3]
    assert len({choice.text for choice in first.choices}) == 4
    again = client.completions.create(**ask)
    assert [c.text for c in again.choices] == [c.text for c in first.choices]
    assert texts(client.completions.create(**ask, stream=True), 4) == [c.text for c in first.choices]


def test_chat(client: Any) -> None:
    ask = {"model": "tiny", "messages": HELLO, "max_tokens": 30, "temperature": 0}
    whole = client.chat.completions.create(**ask, logprobs=True, top_logprobs=3)
    content = whole.choices[0].message.content
    assert whole.choices[0].message.role == "assistant" and whole.usage.completion_tokens == 30
    assert len(whole.choices[0].logprobs.content) == 30
    assert all(len(token.top_logprobs) == 3 for token in whole.choices[0].logprobs.content)
    assert texts(client.chat.completions.create(**ask, stream=True)) == [content]
    cached = client.chat.completions.create(**ask | {"messages": [{"role": "user", "content": "x " * 200}]})
    assert cached.usage.prompt_tokens_details.cached_tokens == 0
    cached = client.chat.completions.create(**ask | {"messages": [{"role": "user", "content": "x " * 200}]})
    assert cached.usage.prompt_tokens_details.cached_tokens > 100
    stopped = client.chat.completions.create(**ask, stop=[content[10:14]]).choices[0]
    assert stopped.finish_reason == "stop" and content[10:14] not in stopped.message.content
    limited = client.chat.completions.create(model="tiny", messages=HELLO, max_completion_tokens=3, temperature=0)
    assert limited.usage.completion_tokens == 3


def test_thoughts(script: Any) -> None:
    message = script("thoughts").choices[0].message
    assert (message.reasoning_content, message.content) == (THOUGHTS, "Good morning.")
    deltas = [chunk.choices[0].delta for chunk in script("thoughts", stream=True)]
    assert "".join(getattr(delta, "reasoning_content", "") or "" for delta in deltas) == THOUGHTS
    assert "".join(delta.content or "" for delta in deltas) == "Good morning."


def test_tools(script: Any) -> None:
    whole = script("calls", tools=TOOLS).choices[0]
    expected = [(json.loads(call)["name"], json.loads(call)["arguments"]) for call in (WEATHER, TIME)]
    assert whole.finish_reason == "tool_calls" and whole.message.content == "I look it up."
    assert [(c.function.name, json.loads(c.function.arguments)) for c in whole.message.tool_calls] == expected
    calls: dict[int, Any] = {}
    content = reason = ""
    for chunk in script("calls", tools=TOOLS, stream=True):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        reason = chunk.choices[0].finish_reason or reason
        for piece in delta.tool_calls or []:
            call = calls.setdefault(piece.index, {"id": piece.id, "name": piece.function.name, "arguments": ""})
            call["arguments"] += piece.function.arguments
    assert [(call["name"], json.loads(call["arguments"])) for call in calls.values()] == expected
    assert all(call["id"] for call in calls.values()) and (content, reason) == ("I look it up.", "tool_calls")
    assert len(script("calls", tools=TOOLS, parallel_tool_calls=False).choices[0].message.tool_calls) == 1


def test_a_round_trip_of_a_tool(script: Any, scripted: str) -> None:
    """The arguments of the call go back to the model as an object, the result as a message of its own."""
    message = script("call", tools=TOOLS).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Sunny."}
    messages = [{"role": "user", "content": "Hi"}, message.model_dump(exclude_none=True), result]
    assert script("plain", messages=messages, tools=TOOLS).choices[0].message.content == SCRIPTS["plain"]

    def call(path: str, body: Any) -> Any:
        request = urllib.request.Request(scripted + path, json.dumps(body).encode(), {"Authorization": "Bearer " + KEY})
        return json.load(urllib.request.urlopen(request))
    prompt = call("/detokenize", {"tokens": call("/tokenize", {"messages": messages, "tools": TOOLS})["tokens"]})["prompt"]
    assert '"arguments": {"city": "Paris", "days": [1, 2]}' in prompt and "<|im_start|>tool\nSunny.<|im_end|>" in prompt


@pytest.mark.parametrize("options", [{}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}])
@pytest.mark.parametrize("name", ["unknown", "tags"])
def test_what_is_no_call_is_content(script: Any, name: str, options: Any) -> None:
    """A function that was not offered is not called, and text that only begins like a tag is not lost."""
    message = script(name, **options).choices[0].message
    assert message.content == SCRIPTS[name] and message.tool_calls is None
    assert texts(script(name, stream=True, **options)) == [SCRIPTS[name]]


def test_extra_fields_of_vllm(client: Any) -> None:
    ask = {"model": "tiny", "prompt": PROMPT, "max_tokens": 5, "temperature": 0}
    extra = {"return_token_ids": True, "prompt_logprobs": 1, "cache_salt": "a", "priority": 3, "min_tokens": 2, "unknown_field": 1}
    choice = client.completions.create(**ask, user="me", extra_body=extra).choices[0]
    assert len(choice.token_ids) == 5 and len(choice.prompt_logprobs) == len(choice.prompt_token_ids)
    ids = choice.prompt_token_ids
    assert client.completions.create(**ask | {"prompt": [ids, ids]}).choices[1].text == choice.text
    only = client.completions.create(**ask, extra_body={"allowed_token_ids": [choice.token_ids[0]]}).choices[0]
    assert len(set(only.text.split())) == 1


def test_each_sampling_field_has_its_effect(client: Any) -> None:
    def ask(**extra: Any) -> Any:
        fields = {"temperature": 0, "max_tokens": 24, "return_token_ids": True, "ignore_eos": True} | extra
        return client.completions.create(model="tiny", prompt=PROMPT, extra_body=fields).choices[0]
    greedy = ask()
    ids = greedy.token_ids
    # What leaves only the best token.
    for field, value in (("top_k", 1), ("top_p", 1e-6), ("min_p", 1)):
        assert ask(temperature=1, seed=1, **{field: value}).token_ids == ids, field
    assert ask(temperature=1, seed=1).token_ids == ask(temperature=1, seed=1).token_ids != ask(temperature=1, seed=2).token_ids
    # What makes the best token another one.
    for field, value in (("repetition_penalty", 1.9), ("presence_penalty", 2), ("frequency_penalty", 2)):
        assert ask(**{field: value}).token_ids != ids, field
    word = greedy.text.split()[0]
    assert word not in ask(bad_words=[word]).text
    assert ask(logit_bias={str(ids[0]): -100}).token_ids[0] != ids[0]
    assert ask(logit_bias={str(ids[5]): 100}).token_ids == [ids[5]] * 24
    assert set(ask(allowed_token_ids=ids[:3]).token_ids) <= set(ids[:3])
    # What ends the answer.
    end = ask(stop_token_ids=[ids[6]])
    assert (end.finish_reason, end.stop_reason, end.token_ids) == ("stop", ids[6], ids[:ids.index(ids[6]) + 1])
    assert len(ask(stop_token_ids=[ids[6]], min_tokens=12).token_ids) >= 12
    assert ask(stop=word).text.strip() == "" and ask(stop=["xyzzy", word]).stop_reason == word
    assert ask(max_tokens=1).token_ids == ids[:1]
    stop = ask(ignore_eos=False, logit_bias={"8168": 100})  # <|im_end|>
    assert (stop.finish_reason, stop.text) == ("stop", "")
    shown = ask(skip_special_tokens=False, max_tokens=1, logit_bias={"8168": 100})
    assert shown.text == "<|im_end|>"


def test_errors(client: Any, tales: str, full: str) -> None:
    ask = {"model": "tiny", "messages": HELLO}
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"uniqueItems": True}}}
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]
    for options, word in (({"temperature": -1}, "temperature"), ({"response_format": schema}, "response_format"),
                          ({"tool_choice": "required"}, "tool_choice"), ({"messages": image}, "image_url"),
                          ({"n": 10**6}, "n ")):
        with pytest.raises(openai.BadRequestError, match=word):
            client.chat.completions.create(**ask | options)
    with pytest.raises(openai.BadRequestError, match="best_of"):
        client.completions.create(model="tiny", prompt=PROMPT, best_of=2)
    with pytest.raises(openai.NotFoundError, match="other") as not_found:
        client.chat.completions.create(model="other", messages=HELLO)
    assert (not_found.value.code, not_found.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="tiny", input="a")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").chat.completions.create(**ask)
    small = client_of(full)
    name = small.models.list().data[0].id
    with pytest.raises(openai.BadRequestError, match="n 2 times 1"):
        small.completions.create(model=name, prompt="a", n=2)
    with small.completions.create(model=name, prompt="a", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}) as running:
        next(iter(running))
        with pytest.raises(openai.RateLimitError) as rate:
            small.completions.create(model=name, prompt="a")
    assert rate.value.response.headers["Retry-After"] == "1"


def test_a_stream_that_is_cancelled(client: Any, tales: str) -> None:
    def load() -> int:
        request = urllib.request.Request(tales + "/load", headers={"Authorization": "Bearer " + KEY})
        return int(json.load(urllib.request.urlopen(request))["server_load"])
    stream = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=1900, stream=True, extra_body={"ignore_eos": True})
    assert next(iter(stream)).choices[0].text
    stream.close()
    end = time.monotonic() + 60
    while load() != 0:
        assert time.monotonic() < end, "the request of a client that went is still running"
        time.sleep(0.02)
