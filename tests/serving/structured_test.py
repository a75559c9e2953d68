#!/usr/bin/env python3
"""structured_test.py NANOVLLM MODEL: answers of a given form and forced calls at temperature 1, whole and streamed."""
import json
import re
import subprocess
import sys

from serve_test import Server, equal

PERSON = {"type": "object", "additionalProperties": False, "required": ["name", "age", "likes"], "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 8}, "age": {"type": "integer", "minimum": 3, "maximum": 99},
    "likes": {"type": "array", "maxItems": 3, "items": {"enum": ["cats", "dogs", "rain"]}}}}
TOOLS = [{"type": "function", "function": {"name": name, "description": "d", "parameters": {
    "type": "object", "additionalProperties": False, "required": ["city"], "properties": {
        "city": {"enum": ["Rome", "Oslo"]}, "days": {"$ref": "#/$defs/days"}},
    "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 9}}}}} for name in ("weather", "visit")]
KINDS = {"object": dict, "string": str, "integer": int, "array": list}


def check(value, schema, root=None):
    """Fails unless the value has the form of the schema, as far as the schemas above go."""
    root = root or schema
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].split("/")[-1]]
    assert value in schema.get("enum", [value]), value
    if "type" in schema:
        assert type(value) is KINDS[schema["type"]], value
    if isinstance(value, dict):
        assert set(schema.get("required", [])) <= set(value) <= set(schema["properties"]), value
        for name, member in value.items():
            check(member, schema["properties"][name], root)
    if isinstance(value, list):
        assert len(value) <= schema["maxItems"], value
        for item in value:
            check(item, schema["items"], root)
    if isinstance(value, str):
        assert schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 99), value
    if isinstance(value, int):
        assert schema["minimum"] <= value <= schema["maximum"], value


# At this temperature a model that knows no JSON writes much white space.
COMPACT = {"structured_outputs": {"disable_any_whitespace": True}}
# A thought may take all tokens of an answer.
AT_ONCE = {"chat_template_kwargs": {"enable_thinking": False}}


def chat(**more):
    return {"messages": [{"role": "user", "content": "Tell me about Lily"}], "temperature": 1, "max_tokens": 400, **AT_ONCE, **more}


def choices(server, body):
    status, answer = server.call("POST", "/v1/chat/completions", body)
    assert status == 200, answer
    return answer["choices"]


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}}


def test_schemas(server):
    for seed in range(4):
        body = chat(seed=seed, n=2, response_format=schema_format(PERSON), **COMPACT)
        for choice in choices(server, body):
            equal(choice["finish_reason"], "stop")
            check(json.loads(choice["message"]["content"]), PERSON)
        texts = ["", ""]
        for event in server.events("/v1/chat/completions", body):
            for choice in event["choices"]:
                texts[choice["index"]] += choice["delta"].get("content") or ""
        for text in texts:
            check(json.loads(text), PERSON)
    for field in ({"structured_outputs": {"json": PERSON, "whitespace_pattern": " ?"}}, {"guided_json": PERSON, **COMPACT},
                  {"structured_outputs": {"json": json.dumps(PERSON), "disable_any_whitespace": True}},
                  {"guided_json": PERSON, "guided_whitespace_pattern": ""}, {"json_schema": json.dumps(PERSON), **COMPACT}):
        check(json.loads(choices(server, chat(**field))[0]["message"]["content"]), PERSON)
    (choice,) = choices(server, chat(response_format={"type": "json_object"}))
    if choice["finish_reason"] == "stop":
        equal(type(json.loads(choice["message"]["content"])), dict)
    equal(choice["message"]["content"].lstrip()[:1], "{")


def test_completions(server):
    body = {"prompt": "Once upon a time", "temperature": 1, "max_tokens": 60, "n": 3}
    for field, pattern in (({"structured_outputs": {"regex": "[0-9]{3}-(a|b)+c"}}, "[0-9]{3}-(a|b)+c"),
                           ({"guided_regex": "x{2,5}"}, "x{2,5}"), ({"regex": "x{2,5}"}, "x{2,5}"),
                           ({"structured_outputs": {"choice": ["a cat", "a dog"]}}, "a cat|a dog"),
                           ({"guided_choice": ["one", "two"]}, "one|two"),
                           ({"structured_outputs": {"grammar": 'root ::= "a" [b-d] | "e"'}}, "a[b-d]|e"),
                           ({"guided_grammar": 'start: "x" NUM\nNUM: /[0-9]{2}/'}, "x[0-9]{2}")):
        status, answer = server.call("POST", "/v1/completions", {**body, **field})
        equal(status, 200)
        for choice in answer["choices"]:
            if choice["finish_reason"] != "length":
                assert re.fullmatch(pattern, choice["text"]), (field, choice)
    events = server.events("/v1/completions", {**body, "n": 1, "guided_choice": ["one", "two"]})
    assert "".join(e["choices"][0]["text"] for e in events) in ("one", "two"), events


def test_other_apis(server):
    body = {"input": "Lily", "max_output_tokens": 400, **AT_ONCE, **COMPACT,
            "text": {"format": {"type": "json_schema", "name": "n", "schema": PERSON}}}
    status, answer = server.call("POST", "/v1/responses", body)
    equal((status, answer["status"], answer["text"]), (200, "completed", body["text"]))
    check(json.loads(answer["output"][-1]["content"][0]["text"]), PERSON)
    schema = {"type": "json_schema", "schema": PERSON}
    for field in ({"output_format": schema}, {"output_config": {"format": schema}}):
        body = {"messages": [{"role": "user", "content": "Lily"}], "max_tokens": 400, **field, **AT_ONCE, **COMPACT}
        status, answer = server.call("POST", "/v1/messages", body)
        equal((status, answer["stop_reason"]), (200, "end_turn"))
        check(json.loads(answer["content"][-1]["text"]), PERSON)


def check_calls(calls, names, most=None):
    assert 1 <= len(calls) <= (most or 99), calls
    for name, arguments in calls:
        assert name in names, name
        check(arguments, TOOLS[0]["function"]["parameters"])


def test_forced_calls(server):
    named = {"type": "function", "function": {"name": "visit"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    for choice, names in (("required", ("weather", "visit")), (named, ("visit",)), (allowed, ("visit",))):
        for more in ({}, {"response_format": schema_format(PERSON)}):
            body = chat(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, n=2, **more)
            for answer in choices(server, body):
                equal((answer["finish_reason"], answer["message"]["content"] or ""), ("tool_calls", ""))
                calls = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in answer["message"]["tool_calls"]]
                check_calls(calls, names, most=1)
        deltas = [event["choices"][0]["delta"] for event in server.events("/v1/chat/completions", {**body, "n": 1})
                  if event["choices"]]
        calls = [c["function"] for delta in deltas for c in delta.get("tool_calls", [])]
        check_calls([(c["name"], json.loads(c["arguments"])) for c in calls], names, most=1)
    # A named function is called once.
    (answer,) = choices(server, chat(tools=TOOLS, tool_choice=named))
    check_calls([(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in answer["message"]["tool_calls"]],
                ("visit",), most=1)
    # Several calls end when the model ends them, or with max_tokens.
    (answer,) = choices(server, chat(tools=TOOLS, tool_choice="required"))
    check_calls([(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in answer["message"]["tool_calls"]],
                ("weather", "visit"))
    # Without tools that may be called, only the form of the answer counts.
    (answer,) = choices(server, chat(tools=TOOLS, tool_choice="none", response_format=schema_format(PERSON), **COMPACT))
    check(json.loads(answer["message"]["content"]), PERSON)

    tools = [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in TOOLS]
    for choice, names in (({"type": "any"}, ("weather", "visit")), ({"type": "tool", "name": "weather"}, ("weather",))):
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 200, "tools": tools, **AT_ONCE,
                "tool_choice": {**choice, "disable_parallel_tool_use": True}}
        answer = server.call("POST", "/v1/messages", body)[1]
        equal((answer["stop_reason"], {block["type"] for block in answer["content"]}), ("tool_use", {"tool_use"}))
        check_calls([(block["name"], block["input"]) for block in answer["content"]], names, most=1)
    tools = [{"type": "function", **t["function"]} for t in TOOLS]
    for choice, names in (("required", ("weather", "visit")), ({"type": "function", "name": "visit"}, ("visit",))):
        body = {"input": "x", "tools": tools, "tool_choice": choice, "parallel_tool_calls": False, "max_output_tokens": 200,
                **AT_ONCE}
        answer = server.call("POST", "/v1/responses", body)[1]
        equal(answer["tool_choice"], choice)
        check_calls([(item["name"], json.loads(item["arguments"])) for item in answer["output"]], names, most=1)


def test_strict_tools(server):
    """A model that begins a call by itself is held to the schemas of functions that are strict."""
    tools = json.loads(json.dumps(TOOLS))
    for tool in tools:
        tool["function"]["strict"] = True
    tag = server.call("POST", "/tokenize", {"prompt": "<tool_call>", "add_special_tokens": False})[1]["tokens"]
    equal(len(tag), 1)
    for seed in range(3):
        body = chat(tools=tools, seed=seed, logit_bias={tag[0]: 100}, parallel_tool_calls=False)
        (answer,) = choices(server, body)
        equal(answer["finish_reason"], "tool_calls")
        (call,) = answer["message"]["tool_calls"]
        check(json.loads(call["function"]["arguments"]), TOOLS[0]["function"]["parameters"])
    # An answer of a form may be a call instead.
    (answer,) = choices(server, {**body, "response_format": schema_format(PERSON)})
    equal(len(answer["message"]["tool_calls"]), 1)
    brace = server.call("POST", "/tokenize", {"prompt": "{", "add_special_tokens": False})[1]["tokens"]
    (answer,) = choices(server, chat(tools=TOOLS, logit_bias={brace[0]: 100}, response_format=schema_format(PERSON), **COMPACT))
    check(json.loads(answer["message"]["content"]), PERSON)


def test_errors(server):
    wrong = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "array", "uniqueItems": True}}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": wrong}}]
    for more, param, words in (
            ({"response_format": schema_format(wrong)}, "response_format", ("/properties/a/items", "uniqueItems")),
            ({"guided_json": wrong}, "guided_json", ("/properties/a/items",)),
            ({"structured_outputs": {"json": "{"}}, "structured_outputs", ("JSON",)),
            ({"structured_outputs": {"regex": "("}}, "structured_outputs", ()),
            ({"structured_outputs": {"grammar": "root ::= a"}}, "structured_outputs", ("a",)),
            ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs", ("json and regex",)),
            ({"structured_outputs": {}}, "structured_outputs", ("no form",)),
            ({"guided_regex": "a", "guided_json": {}}, "guided_json", ("second form",)),
            ({"response_format": {"type": "xml"}}, "response_format", ("xml",)),
            ({"tools": tools, "tool_choice": "required"}, "tools", ('"f"', "/properties/a/items")),
            ({"tool_choice": "required"}, "tool_choice", ()),
            ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", ())):
        status, answer = server.call("POST", "/v1/chat/completions", chat(**more))
        assert status == 400, (more, answer)
        equal(answer["error"]["param"], param)
        for word in words:
            assert word in answer["error"]["message"], answer
    # Tools that are not forced are not compiled.
    equal(server.call("POST", "/v1/chat/completions", chat(tools=tools, max_tokens=4))[0], 200)
    text = {"format": {"type": "json_schema", "name": "n", "schema": wrong}}
    status, answer = server.call("POST", "/v1/responses", {"input": "x", "text": text})
    equal((status, answer["error"]["param"], "/properties/a/items" in answer["error"]["message"]), (400, "text.format", True))


def test_command_line():
    def generate(*options, prompt="The cat"):
        run = subprocess.run([sys.argv[1], "generate", sys.argv[2], "-p", prompt, "--quiet", *options], capture_output=True,
                             text=True)
        return run.returncode, run.stdout, run.stderr

    status, out, err = generate("--json-schema", json.dumps(PERSON), "--max-tokens", "1500", "--json")
    equal(status, 0)
    check(json.loads(json.loads(out)["text"]), PERSON)
    status, out, err = generate("--regex", "[0-9]{4}", "--json")
    assert status == 0 and re.fullmatch("[0-9]{4}", json.loads(out)["text"]), (out, err)
    status, out, err = generate("--choice", " sat", "--choice", " ran", "--json")
    assert status == 0 and json.loads(out)["text"] in (" sat", " ran"), (out, err)
    for options, words in ((("--json-schema", "/no/such"), "--json-schema: /no/such"), (("--grammar", "/no/such"), "--grammar"),
                           (("--json-schema", "{"), "--json-schema"), (("--regex", "("), "structured_outputs"),
                           (("--regex", "a", "--choice", "b"), "--regex and --choice")):
        status, out, err = generate(*options)
        assert status == 2 and words in out + err and err.count("\n") <= 1, (options, status, out, err)


def main():
    server = Server()
    for test in (test_schemas, test_completions, test_other_apis, test_forced_calls, test_strict_tools, test_errors):
        test(server)
    equal(server.stop(), 0)
    test_command_line()


if __name__ == "__main__":
    main()
