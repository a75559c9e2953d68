"""The package `anthropic`, as its users write programs with it."""
import json
import urllib.request
from typing import Any

import pytest

from conftest import KEY, SCRIPTS, THOUGHTS, TIME, WEATHER

anthropic = pytest.importorskip("anthropic", reason="the package anthropic is not installed (pip install anthropic)")

HELLO = [{"role": "user", "content": "introduce yourself"}]
TOOLS = [{"name": name, "description": name, "input_schema": {"type": "object", "properties": {}}}
         for name in ("get_weather", "get_time")]


def client_of(url: str) -> Any:
    return anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0)


@pytest.fixture
def client(tales: str) -> Any:
    return client_of(tales)


@pytest.fixture
def script(scripted: str) -> Any:
    """The arguments that ask the scripted model for one of its answers."""
    def options(name: str, **more: Any) -> Any:
        return {"model": "scripted", "max_tokens": 500, "messages": [{"role": "user", "content": "Hi"}],
                "extra_body": {"chat_template_kwargs": {"script": name}}} | more
    return options


@pytest.fixture
def messages(scripted: str) -> Any:
    return client_of(scripted).messages


def blocks(message: Any) -> list[Any]:
    """The content as the client has it, without ids and signatures."""
    return [{k: v for k, v in block.model_dump(exclude_none=True).items() if k in ("type", "text", "thinking", "name", "input")}
            for block in message.content]


def test_messages(client: Any) -> None:
    ask = {"model": "tiny", "max_tokens": 25, "messages": HELLO, "extra_body": {"temperature": 0}}
    whole = client.messages.create(**ask, metadata={"user_id": "me"})
    assert (whole.type, whole.role, whole.model, whole.stop_reason) == ("message", "assistant", "tiny", "max_tokens")
    assert whole.usage.output_tokens == 25 and whole.usage.input_tokens > 0
    with client.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert blocks(whole) == [{"type": "text", "text": text}] == blocks(final)
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 25)
    stopped = client.messages.create(**ask, stop_sequences=["xyzzy", text[10:14]])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", text[10:14])
    with client.messages.stream(**ask, stop_sequences=[text[10:14]]) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", text[10:14])
    assert blocks(final) == blocks(stopped)


def test_the_cache(client: Any) -> None:
    ask = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "y " * 200}]}
    first = client.messages.create(**ask).usage
    again = client.messages.create(**ask).usage
    assert (first.cache_read_input_tokens, first.cache_creation_input_tokens) == (0, 0)
    assert again.cache_read_input_tokens > 100
    assert again.cache_read_input_tokens + again.input_tokens == first.input_tokens
    with client.messages.stream(**ask) as stream:
        usage = stream.get_final_message().usage
    assert usage.cache_read_input_tokens == again.cache_read_input_tokens


def test_system_and_count_tokens(client: Any) -> None:
    bare = client.messages.count_tokens(model="tiny", messages=HELLO).input_tokens
    text = client.messages.count_tokens(model="tiny", messages=HELLO, system="Be brief.").input_tokens
    part = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    assert client.messages.count_tokens(model="tiny", messages=HELLO, system=part).input_tokens == text > bare
    whole = client.messages.create(model="tiny", max_tokens=1, messages=HELLO, system="Be brief.")
    assert whole.usage.input_tokens + whole.usage.cache_read_input_tokens == text


def test_thinking(script: Any, messages: Any) -> None:
    expected = [{"type": "thinking", "thinking": THOUGHTS}, {"type": "text", "text": "Good morning."}]
    thinks = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    assert blocks(messages.create(**script("thoughts", **thinks))) == expected
    with messages.stream(**script("thoughts", **thinks)) as stream:
        kinds = [event.type for event in stream if event.type in ("thinking", "text")]
        assert blocks(stream.get_final_message()) == expected
    assert set(kinds) == {"thinking", "text"}
    counts = {kind: messages.count_tokens(model="scripted", messages=HELLO, thinking={"type": kind} | budget).input_tokens
              for kind, budget in (("enabled", {"budget_tokens": 1024}), ("disabled", {}))}
    assert counts["disabled"] > counts["enabled"]  # the template then writes empty thoughts


def test_tools(script: Any, messages: Any) -> None:
    calls = [{"type": "tool_use", "name": call["name"], "input": call["arguments"]} for call in map(json.loads, (WEATHER, TIME))]
    expected = [{"type": "text", "text": "I look it up."}, *calls]
    whole = messages.create(**script("calls", tools=TOOLS, tool_choice={"type": "auto"}))
    assert (blocks(whole), whole.stop_reason) == (expected, "tool_use")
    with messages.stream(**script("calls", tools=TOOLS)) as stream:
        final = stream.get_final_message()
    assert (blocks(final), final.stop_reason) == (expected, "tool_use")
    one = messages.create(**script("calls", tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True}))
    assert blocks(one) == expected[:2]
    none = messages.create(**script("calls", tools=TOOLS, tool_choice={"type": "none"}))
    assert (blocks(none), none.stop_reason) == ([{"type": "text", "text": SCRIPTS["calls"]}], "end_turn")


def test_a_round_trip_of_a_tool(script: Any, messages: Any) -> None:
    first = messages.create(**script("call", tools=TOOLS))
    use = first.content[-1]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "Sunny."}]}
    history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": first.content},
               {"role": "user", "content": [result, {"type": "text", "text": "Well?"}]}]
    answer = messages.create(**script("plain", tools=TOOLS, messages=history))
    assert blocks(answer) == [{"type": "text", "text": SCRIPTS["plain"]}]


@pytest.mark.parametrize("name", ["unknown", "tags"])
def test_what_is_no_call_is_text(script: Any, messages: Any, name: str) -> None:
    expected = [{"type": "text", "text": SCRIPTS[name]}]
    assert blocks(messages.create(**script(name, tools=TOOLS))) == expected
    with messages.stream(**script(name, tools=TOOLS)) as stream:
        assert blocks(stream.get_final_message()) == expected


def test_the_events(tales: str) -> None:
    """In the order of Anthropic's description, each with its name."""
    body = {"model": "tiny", "max_tokens": 20, "messages": HELLO, "stream": True, "temperature": 0}
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
    request = urllib.request.Request(tales + "/v1/messages", json.dumps(body).encode(), headers)
    events = urllib.request.urlopen(request).read().decode().split("\n\n")
    assert events.pop() == ""
    names = []
    for event in events:
        name, data = event.split("\n")
        names.append(name.removeprefix("event: "))
        assert json.loads(data.removeprefix("data: "))["type"] == names[-1]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[3:-3]) == {"content_block_delta"}


def test_errors(client: Any, full: str) -> None:
    ask = {"model": "tiny", "max_tokens": 4, "messages": HELLO}
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    image = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    for options, word in (({"extra_body": {"temperature": -1}}, "temperature"), ({"messages": image}, "image"),
                          ({"tool_choice": {"type": "any"}}, "tool_choice"),
                          ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
                          ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
                          ({"stop_sequences": ["a"] * 300}, "stop_sequences has 300"),
                          ({"messages": [*HELLO, {"role": "critic", "content": "I"}]}, "critic")):
        with pytest.raises(anthropic.BadRequestError, match=word) as bad:
            client.messages.create(**ask | options)
        assert bad.value.body["type"] == "error" and bad.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**ask | {"model": "other"})
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="wrong").messages.create(**ask)
    held = client_of(full)
    models = urllib.request.Request(full + "/v1/models", headers={"x-api-key": KEY})
    name = json.load(urllib.request.urlopen(models))["data"][0]["id"]
    with held.messages.stream(model=name, max_tokens=1500, messages=HELLO, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
        with pytest.raises(anthropic.RateLimitError):
            held.messages.create(**ask | {"model": name})


def test_a_stream_that_is_cancelled(client: Any) -> None:
    with client.messages.stream(model="tiny", max_tokens=1500, messages=HELLO, extra_body={"temperature": 0}) as stream:
        for text in stream.text_stream:
            assert text
            break
