#!/usr/bin/env python3
"""Renders conversations through chat templates with Jinja2, configured as in transformers, and with `nanovllm render`. Both
must give the same text, or both must fail.

  python3 -m venv venv && venv/bin/pip install jinja2
  venv/bin/python scripts/templates_differential.py --render "build/release/nanovllm render --json" TEMPLATE.jinja ...
"""

import argparse
import datetime
import json
import shlex
import subprocess
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    """{% generation %} is a block with its own variables, like the one that tracks assistant masks in transformers."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("body"), [], [], body).set_lineno(line)

    def body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def to_json(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def make_environment():
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda format: datetime.datetime.now().strftime(format)
    return environment


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather <now> & later in a city's \"centre\"",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": "integer", "minimum": 1, "maximum": 18446744073709551615},
                "coordinates": {"type": "array", "items": {"type": "number"}, "description": "Latitude, longitude"},
                "options": {
                    "type": "object",
                    "properties": {"wind": {"type": "boolean"}, "rain": {"type": ["string", "null"]}},
                    "required": ["wind"],
                },
                "either": {"anyOf": [{"type": "string"}, {"type": "integer"}], "nullable": True},
            },
            "required": ["city"],
        },
        "return": {"type": "string", "description": "A sentence"},
    },
}
EMPTY_TOOL = {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}}


def call(arguments, id="call12345", name="get_weather"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def say(role, content, **more):
    return {"role": role, "content": content, **more}


ARGUMENTS = {"city": "Zürich <3>", "days": 2, "coordinates": [47.37, 8.55], "options": {"wind": True, "rain": None}, "scale": 1e-7}
HELLO = say("user", "Hello, wörld! 'single' \"double\" & <tag> {{ x }}")
SYSTEM = say("system", "  You are terse.\nAlways.  ")
THINK = "<think>\nHm, 2 + 2.\n</think>\n\nIt is 4."
ASK = say("user", "Weather in Zürich?")
PARTS = [{"type": "text", "text": "What is this?"}, {"type": "image", "image": "x.png"}, {"type": "text", "text": " And that?"}]

CONVERSATIONS = {
    "plain": [HELLO],
    "system": [SYSTEM, HELLO],
    "turns": [SYSTEM, HELLO, say("assistant", " Hi there. \n"), say("user", "2 + 2?\n"), say("assistant", THINK), say("user", "And 3 + 3?")],
    "ends with the assistant": [HELLO, say("assistant", "Hi")],
    "reasoning": [HELLO, say("assistant", "4", reasoning_content="Let me see", thinking="Let me see", reasoning="Let me see"), say("user", "Why?")],
    "reasoning last": [HELLO, say("assistant", "4", reasoning_content="Let me see")],
    "empty": [],
    "empty content": [say("user", "")],
    "no user": [SYSTEM],
    "two users": [HELLO, say("user", "Anyone?")],
    "two assistants": [HELLO, say("assistant", "A"), say("assistant", "B")],
    "assistant first": [say("assistant", "Hi"), HELLO],
    "odd role": [say("narrator", "Once"), HELLO],
    "developer": [say("developer", "Be kind."), HELLO],
    "parts": [say("system", [{"type": "text", "text": "Sys"}]), say("user", PARTS), say("assistant", [{"type": "text", "text": "A cat."}]), say("user", "Sure?")],
    "null content": [say("user", None)],
    "no content": [{"role": "user"}],
    "unicode": [say("user", "  🙂 naïve 中文 \u00a0\u2028 ")],
    "tool call": [ASK, say("assistant", None, tool_calls=[call(ARGUMENTS)])],
    "tool call as text": [ASK, say("assistant", "", tool_calls=[call(json.dumps(ARGUMENTS))])],
    "tool result": [SYSTEM, ASK, say("assistant", "", tool_calls=[call(ARGUMENTS)]), say("tool", "18 degrees", tool_call_id="call12345", name="get_weather")],
    "tool result, no content": [ASK, {"role": "assistant", "tool_calls": [call(ARGUMENTS)]}, say("tool", "18 degrees", tool_call_id="call12345", name="get_weather")],
    "tool result, then on": [
        SYSTEM, ASK, say("assistant", "Let me look.", tool_calls=[call(ARGUMENTS)], reasoning_content="A tool!"),
        say("tool", '{"degrees": 18.5}', tool_call_id="call12345", name="get_weather"),
        say("assistant", "18.5 degrees."), say("user", "Thanks!"),
    ],
    "parallel": [
        ASK, say("assistant", "", tool_calls=[call(ARGUMENTS), call({}, "call67890", "now")]),
        say("tool", "18", tool_call_id="call12345", name="get_weather"), say("tool", "noon", tool_call_id="call67890", name="now"),
    ],
    "structured result": [ASK, say("assistant", "", tool_calls=[call(ARGUMENTS)]), say("tool", {"degrees": 18}, tool_call_id="call12345", name="get_weather")],
    "result in parts": [ASK, say("assistant", "", tool_calls=[call(ARGUMENTS)]), say("tool", [{"type": "text", "text": "18"}], tool_call_id="call12345", name="get_weather")],
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
SETTINGS = [
    {**TOKENS, "add_generation_prompt": True},
    {**TOKENS, "add_generation_prompt": False, "tools": None, "documents": None},
    {**TOKENS, "add_generation_prompt": True, "tools": [WEATHER, EMPTY_TOOL]},
    {**TOKENS, "add_generation_prompt": True, "enable_thinking": False, "thinking": False, "tools": [WEATHER]},
    {**TOKENS, "add_generation_prompt": True, "enable_thinking": True, "thinking": True, "reasoning_effort": "high", "tools": []},
    {
        **TOKENS, "add_generation_prompt": True, "date_string": "1 Jan 2030", "functions": [WEATHER["function"]], "builtin_tools": ["code_interpreter"],
        "documents": [{"title": "One", "text": "First & last", "doc_id": 7}], "tools_in_user_message": False, "controls": {"length": "long"},
    },
    {"add_generation_prompt": True},
]


def cases():
    for name, messages in CONVERSATIONS.items():
        for number, setting in enumerate(SETTINGS):
            yield f"{name}, setting {number}", {"messages": messages, **setting}


def expected(source, contexts):
    try:
        template = make_environment().from_string(source)
    except Exception as error:
        return [(None, f"{type(error).__name__}: {error}")] * len(contexts)
    results = []
    for context in contexts:
        try:
            results.append((template.render(**context), None))
        except Exception as error:
            results.append((None, f"{type(error).__name__}: {error}"))
    return results


def rendered(command, path, contexts):
    lines = "".join(json.dumps(context) + "\n" for context in contexts)
    run = subprocess.run(shlex.split(command) + [path], input=lines, capture_output=True, text=True, encoding="utf-8")
    rows = [json.loads(line) for line in run.stdout.split("\n") if line]
    if len(rows) != len(contexts):
        reason = run.stderr.strip() or f"exit status {run.returncode}"
        rows += [{"error": reason}] * (len(contexts) - len(rows))
    return [(row.get("prompt"), row.get("error")) for row in rows]


def near_difference(ours, theirs):
    """Both results, beginning a little before the first difference if they are texts."""
    if ours[0] is None or theirs[0] is None:
        return [text[:200] if text is not None else f"raised {error}" for text, error in (ours, theirs)]
    same = next((i for i, (a, b) in enumerate(zip(ours[0], theirs[0])) if a != b), min(len(ours[0]), len(theirs[0])))
    return [repr(text[max(same - 40, 0) : same + 60]) for text in (ours[0], theirs[0])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--render", default="build/release/nanovllm render", help="the command that takes a template's path")
    parser.add_argument("templates", nargs="+")
    args = parser.parse_args()
    names, contexts = zip(*cases())
    total = texts = different = 0
    for path in args.templates:
        with open(path, encoding="utf-8") as file:
            source = file.read()
        for name, ours, theirs in zip(names, rendered(args.render, path, contexts), expected(source, contexts)):
            total += 1
            texts += theirs[0] is not None
            if ours[0] != theirs[0]:
                different += 1
                mine, reference = near_difference(ours, theirs)
                print(f"{path}: {name}\n  Jinja2:   {reference}\n  nanovllm: {mine}")
    print(f"{total} renderings of {len(args.templates)} templates, {texts} with a text: {different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
