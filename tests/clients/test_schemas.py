"""Every kind of response validates against OpenAI's own description of its API, ../shared/data/conformance/openai_openapi.yaml."""
import copy
import json
import subprocess
import urllib.error
import urllib.request
from typing import Any

import pytest

from conftest import KEY, ROOT
from served import BINARY

jsonschema = pytest.importorskip("jsonschema", reason="the package jsonschema is not installed (pip install jsonschema)")
yaml = pytest.importorskip("yaml", reason="the package pyyaml is not installed (pip install pyyaml)")

DESCRIPTION = ROOT.parent / "shared/data/conformance/openai_openapi.yaml"
PROMPT = "Once upon a time"
HELLO = [{"role": "user", "content": "introduce yourself"}]
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("get_weather", "get_time")]


def with_null(schema: Any) -> Any:
    """Parts of the description say `nullable`, as in OpenAPI 3.0, which JSON Schema does not know."""
    if isinstance(schema, list):
        return [with_null(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {name: with_null(value) for name, value in schema.items()}
    return {"anyOf": [result, {"type": "null"}]} if result.pop("nullable", None) is True else result


@pytest.fixture(scope="session")
def schemas() -> Any:
    if not DESCRIPTION.exists():
        pytest.skip(f"{DESCRIPTION} is not there")
    text = DESCRIPTION.read_text(encoding="utf8")
    return with_null(yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))["components"]["schemas"])


@pytest.fixture(scope="session")
def check(schemas: Any) -> Any:
    # OpenAI sends null in three places where its description of completions does not say so: the reason of a choice that goes
    # on in a stream, and the log-probabilities of an echoed prompt's first token.
    schemas = copy.deepcopy(schemas)
    choice = schemas["CreateCompletionResponse"]["properties"]["choices"]["items"]["properties"]
    schemas["Chunk"] = copy.deepcopy(schemas["CreateCompletionResponse"])
    reason = schemas["Chunk"]["properties"]["choices"]["items"]["properties"]["finish_reason"]
    reason.update({"type": ["string", "null"], "enum": [*reason["enum"], None]})
    for name, kind in (("token_logprobs", "number"), ("top_logprobs", "object")):
        choice["logprobs"]["anyOf"][0]["properties"][name]["items"]["type"] = [kind, "null"]

    def validate(name: str, instance: Any) -> Any:
        validator = jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}})
        validator.validate(instance)
        return instance
    return validate


def call(url: str, path: str, body: Any = None, key: str = KEY) -> str:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Authorization": "Bearer " + key})
    try:
        return str(urllib.request.urlopen(request).read(), "utf8")
    except urllib.error.HTTPError as error:
        return str(error.read(), "utf8")


def chunks(url: str, path: str, body: Any) -> list[Any]:
    events = call(url, path, body | {"stream": True}).removesuffix("\n\n").split("\n\n")
    assert events.pop() == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_the_check_itself(check: Any) -> None:
    for wrong in ({}, {"error": {"message": 1, "type": "a", "param": None, "code": None}}):
        with pytest.raises(jsonschema.ValidationError):
            check("ErrorResponse", wrong)


EVERYTHING = {"n": 2, "seed": 3, "stop": ["."], "return_token_ids": True, "max_tokens": 30}


@pytest.mark.parametrize("options", [{}, {"logprobs": 3}, EVERYTHING, {"n": 2, "logprobs": 0, "stop": ["a"]},
                                     {"prompt": [PROMPT, "The fox"], "max_tokens": 3}])
def test_completions(check: Any, tales: str, options: dict[str, Any]) -> None:
    body = {"model": "tiny", "prompt": PROMPT} | options
    check("CreateCompletionResponse", json.loads(call(tales, "/v1/completions", body)))
    for more in ({}, {"stream_options": {"include_usage": True}},
                 {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}):
        found = chunks(tales, "/v1/completions", body | more)
        assert bool(found[-1].get("usage")) == bool(more)
        for chunk in found:
            check("Chunk", chunk)
            assert ("usage" in chunk) == ("continuous_usage_stats" in str(more)) or chunk is found[-1]


@pytest.mark.parametrize("options", [{"echo": True}, {"echo": True, "logprobs": 2}, {"echo": True, "max_tokens": 0, "logprobs": 1},
                                     {"prompt_logprobs": 2}])
def test_echo(check: Any, tales: str, options: dict[str, Any]) -> None:
    check("CreateCompletionResponse", json.loads(call(tales, "/v1/completions", {"model": "tiny", "prompt": PROMPT} | options)))


@pytest.mark.parametrize("options", [{}, {"logprobs": True, "top_logprobs": 4}, EVERYTHING, {"logprobs": True}])
def test_chat(check: Any, tales: str, options: dict[str, Any]) -> None:
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 12} | options
    check("CreateChatCompletionResponse", json.loads(call(tales, "/v1/chat/completions", body)))
    for more in ({}, {"stream_options": {"include_usage": True}},
                 {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}):
        found = chunks(tales, "/v1/chat/completions", body | more)
        assert bool(found[-1].get("usage")) == bool(more)
        for chunk in found:
            check("CreateChatCompletionStreamResponse", chunk)
            assert ("usage" in chunk) == bool(more)


@pytest.mark.parametrize("script", ["plain", "thoughts", "call", "calls", "unknown", "tags"])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_thoughts_and_tools(check: Any, scripted: str, script: str, tools: Any) -> None:
    body = {"messages": HELLO, "tools": tools, "chat_template_kwargs": {"script": script}, "temperature": 0}
    whole = check("CreateChatCompletionResponse", json.loads(call(scripted, "/v1/chat/completions", body)))
    assert bool(whole["choices"][0]["message"].get("tool_calls")) == (tools is not None and script in ("call", "calls"))
    for chunk in chunks(scripted, "/v1/chat/completions", body):
        check("CreateChatCompletionStreamResponse", chunk)


# OpenAI's API reference, "The request output object"; its description of the API has no schema for it.
BATCH_OUTPUT = {
    "type": "object", "additionalProperties": False, "required": ["id", "custom_id", "response", "error"],
    "properties": {
        "id": {"type": "string"},
        "custom_id": {"type": "string"},
        "response": {
            "type": ["object", "null"], "additionalProperties": False, "required": ["status_code", "request_id", "body"],
            "properties": {"status_code": {"type": "integer"}, "request_id": {"type": "string"}, "body": {"type": "object"}},
        },
        "error": {
            "type": ["object", "null"], "additionalProperties": False, "required": ["code", "message"],
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}


def test_batch_files(check: Any, tales: str) -> None:
    """The bodies of a batch file's results are those of the server, apart from their ids and times."""
    bodies = [{"messages": HELLO, "max_tokens": 9}, {"messages": HELLO, "max_tokens": 5, "logprobs": True, "top_logprobs": 2, "n": 2},
              {"messages": HELLO, "return_token_ids": True}, {"messages": []}, {"prompt": PROMPT}, {"prompt": PROMPT, "top_p": 7},
              {"prompt": [PROMPT, "The fox"], "max_tokens": 3, "echo": True, "logprobs": 1}, {"prompt": "a " * 3000}]
    paths = ["/v1/chat/completions" if "messages" in body else "/v1/completions" for body in bodies]
    for body in bodies:
        body |= {"model": "tiny", "temperature": 0}
    lines = "".join(json.dumps({"custom_id": str(i), "method": "POST", "url": paths[i], "body": body}) + "\n"
                    for i, body in enumerate(bodies))
    done = subprocess.run([BINARY, "generate", str(ROOT / "models/tiny-tales"), "--prompts-file", "-", "--output-format", "openai",
                           "--dtype", "float32"], input=lines + "[]\n", stdout=subprocess.PIPE, text=True)
    assert done.returncode == 2
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert results.pop()["error"]["code"] == "invalid_request"
    assert len(results) == len(bodies)
    for i, (result, path, body) in enumerate(zip(results, paths, bodies)):
        jsonschema.Draft202012Validator(BATCH_OUTPUT).validate(result)
        assert result["custom_id"] == str(i)
        found, served = result["response"]["body"], json.loads(call(tales, path, body))
        if result["response"]["status_code"] == 200:
            check("CreateChatCompletionResponse" if "messages" in body else "CreateCompletionResponse", found)
            for answer in (found, served):
                assert answer.pop("id").startswith("chatcmpl-" if "messages" in body else "cmpl-")
                assert answer.pop("created") > 0 and answer.pop("model")
                answer["usage"].pop("prompt_tokens_details")
        else:
            check("ErrorResponse", found)
        assert found == served


def test_models(check: Any, tales: str) -> None:
    model, = check("ListModelsResponse", json.loads(call(tales, "/v1/models")))["data"]
    assert check("Model", json.loads(call(tales, "/v1/models/tiny"))) == model


def test_errors(check: Any, tales: str) -> None:
    for path, body, key in (("/v1/chat/completions", {}, KEY), ("/v1/completions", {"prompt": "a", "n": "x"}, KEY),
                            ("/v1/completions", {"prompt": "a", "model": "other"}, KEY), ("/v1/completions", None, KEY),
                            ("/nowhere", None, KEY), ("/v1/models/other", None, KEY), ("/v1/chat/completions", {}, "wrong"),
                            ("/v1/completions", {"prompt": "x" * (33 << 20)}, KEY)):
        check("ErrorResponse", json.loads(call(tales, path, body, key)))
