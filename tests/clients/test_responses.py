"""POST /v1/responses as the package `openai` uses it, with each response and event held against OpenAI's description of its API."""
import json
from typing import Any

import pytest

from conftest import KEY, SCRIPTS, THOUGHTS, TIME, WEATHER
from test_schemas import call, check, schemas  # noqa: F401 (fixtures)

openai = pytest.importorskip("openai", reason="the package openai is not installed (pip install openai)")

TOOLS = [{"type": "function", "name": name, "description": name, "strict": False, "parameters": {"type": "object", "properties": {}}}
         for name in ("get_weather", "get_time")]


@pytest.fixture
def client(scripted: str) -> Any:
    return openai.OpenAI(base_url=scripted + "/v1", api_key=KEY, max_retries=0)


def asked(script: str, **options: Any) -> dict[str, Any]:
    return {"model": "scripted", "input": "Hi", "temperature": 0, "chat_template_kwargs": {"script": script}} | options


def events_of(url: str, body: dict[str, Any]) -> list[Any]:
    """The events of a stream, whose names are their types and whose numbers are their places."""
    events = []
    for block in call(url, "/v1/responses", body | {"stream": True}).removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == "event: " + events[-1]["type"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def without_ids(response: Any) -> Any:
    """What is the same in two responses to the same request."""
    if isinstance(response, list):
        return [without_ids(item) for item in response]
    if not isinstance(response, dict):
        return response
    changing = ("id", "call_id", "created_at", "completed_at", "input_tokens_details")
    return {name: without_ids(value) for name, value in response.items() if name not in changing}


@pytest.mark.parametrize("script", list(SCRIPTS))
@pytest.mark.parametrize("tools", [[], TOOLS])
def test_whole_and_streamed(check: Any, scripted: str, script: str, tools: Any) -> None:
    body = asked(script, tools=tools)
    whole = check("Response", json.loads(call(scripted, "/v1/responses", body)))
    events = events_of(scripted, body)
    for event in events:
        check("ResponseStreamEvent", event)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == "response.completed"
    assert without_ids(events[-1]["response"]["output"]) == without_ids(whole["output"])
    assert without_ids(events[-1]["response"]) == without_ids(whole)
    kinds = [item["type"] for item in whole["output"]]
    expected = {"thoughts": ["reasoning", "message"], "call": ["reasoning", "function_call"],
                "calls": ["message", "function_call", "function_call"]}
    if tools or script == "thoughts":
        assert kinds == expected.get(script, ["message"])


def test_events_of_an_item_are_in_order(scripted: str) -> None:
    events = events_of(scripted, asked("call", tools=TOOLS))
    names = [event["type"].removeprefix("response.") for event in events]
    names = [name for i, name in enumerate(names) if i == 0 or name != names[i - 1]]
    assert names == ["created", "in_progress",
                     "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done",
                     "output_item.done",
                     "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
                     "completed"]
    texts = {}
    for event in events:
        if "delta" in event:
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [texts[item["id"]] for item in done] == ["Weather it is.", done[1]["arguments"]]
    assert json.loads(done[1]["arguments"]) == json.loads(WEATHER)["arguments"]


def test_the_package(client: Any) -> None:
    extra = {"chat_template_kwargs": {"script": "thoughts"}}
    response = client.responses.create(model="scripted", input="Hi", temperature=0, extra_body=extra)
    assert response.output_text == "Good morning." and response.status == "completed"
    assert response.output[0].content[0].text == THOUGHTS
    assert response.usage.output_tokens_details.reasoning_tokens > 0
    with client.responses.stream(model="scripted", input="Hi", temperature=0, extra_body=extra) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(texts) == stream.get_final_response().output_text == "Good morning."


def test_a_tool_loop(client: Any, scripted: str) -> None:
    history: list[Any] = [{"role": "user", "content": "Weather and time?"}]
    ask = {"model": "scripted", "tools": TOOLS, "temperature": 0, "store": False}
    first = client.responses.create(**ask, input=history, extra_body={"chat_template_kwargs": {"script": "calls"}})
    calls = [item for item in first.output if item.type == "function_call"]
    assert [json.loads(c.arguments) for c in calls] == [json.loads(t)["arguments"] for t in (WEATHER, TIME)]
    history += [item.model_dump(exclude_none=True) for item in first.output]
    history += [{"type": "function_call_output", "call_id": c.call_id, "output": f"result {i}"} for i, c in enumerate(calls)]
    last = client.responses.create(**ask, input=history, extra_body={"chat_template_kwargs": {"script": "plain"}})
    assert last.output_text == SCRIPTS["plain"]


def test_a_stored_response_is_continued(check: Any, client: Any, scripted: str) -> None:
    first = client.responses.create(model="scripted", input="Hi", instructions="Be kind.", max_output_tokens=3)
    assert first.status == "incomplete" and first.incomplete_details.reason == "max_output_tokens"
    second = client.responses.create(model="scripted", input="More", previous_response_id=first.id)
    plain = client.responses.create(model="scripted", input="More")
    assert second.usage.input_tokens > plain.usage.input_tokens
    by_hand = client.responses.create(model="scripted", input=[
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": first.output_text}, {"role": "user", "content": "More"}])
    assert second.usage.input_tokens == by_hand.usage.input_tokens
    referred = client.responses.create(model="scripted", input=[
        {"role": "user", "content": "Hi"}, {"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "More"}])
    assert referred.usage.input_tokens == by_hand.usage.input_tokens
    assert client.responses.retrieve(second.id).output_text == second.output_text
    assert [item.content[0].text for item in client.responses.input_items.list(second.id)] == ["More"]
    check("ResponseItemList", json.loads(call(scripted, f"/v1/responses/{second.id}/input_items")))
    client.responses.delete(second.id)
    for gone in (lambda: client.responses.retrieve(second.id), lambda: client.responses.delete(second.id),
                 lambda: client.responses.create(model="scripted", input="a", previous_response_id=second.id)):
        with pytest.raises(openai.NotFoundError):
            gone()
    unstored = client.responses.create(model="scripted", input="Hi", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unstored.id)


def test_an_answer_that_is_cut_off(check: Any, scripted: str) -> None:
    for script in ("plain", "thoughts"):
        body = asked(script, max_output_tokens=3)
        whole = check("Response", json.loads(call(scripted, "/v1/responses", body)))
        last = check("ResponseStreamEvent", events_of(scripted, body)[-1])
        assert last["type"] == "response.incomplete"
        assert without_ids(last["response"]["output"]) == without_ids(whole["output"])
        assert whole["status"] == whole["output"][-1]["status"] == "incomplete"


def test_logprobs(check: Any, scripted: str) -> None:
    body = asked("plain", include=["message.output_text.logprobs"], top_logprobs=2)
    whole = check("Response", json.loads(call(scripted, "/v1/responses", body)))
    shown = whole["output"][0]["content"][0]["logprobs"]
    assert "".join(entry["token"] for entry in shown).startswith(SCRIPTS["plain"])
    assert all(len(entry["top_logprobs"]) == 2 for entry in shown)
    events = events_of(scripted, body)
    for event in events:
        check("ResponseStreamEvent", event)
    streamed = [entry for event in events if event["type"].endswith("text.delta") for entry in event["logprobs"]]
    assert streamed[0] == shown[0]


def test_other_fields(client: Any, scripted: str) -> None:
    body = asked("plain", metadata={"a": "b"}, service_tier="auto", prompt_cache_key="k", truncation="auto", user="u",
                 text={"verbosity": "low"}, include=["reasoning.encrypted_content"], reasoning={"effort": "low", "summary": "auto"},
                 tools=[{"type": "web_search"}, {"type": "custom", "name": "patch"}], max_tool_calls=3, unknown=1)
    response = json.loads(call(scripted, "/v1/responses", body))
    assert response["status"] == "completed" and response["metadata"] == {"a": "b"}
    for field, value in {"background": True, "conversation": "c", "prompt": {"id": "p"}, "tool_choice": "required",
                         "text.format": {"type": "json_schema", "name": "n"}, "input": [], "max_output_tokens": 0,
                         }.items():
        given = {"text": {"format": value}} if field == "text.format" else {field: value}
        error = json.loads(call(scripted, "/v1/responses", asked("plain") | given))["error"]
        assert error["param"] == field and field in error["message"], error
    with pytest.raises(openai.BadRequestError, match="allow-dropped-media"):
        client.responses.create(model="scripted", input=[
            {"role": "user", "content": [{"type": "input_image", "image_url": "u", "detail": "auto"}]}])
    assert json.loads(call(scripted, "/v1/responses/input_tokens", asked("plain")))["input_tokens"] > 0
