#!/usr/bin/env python3
"""tool_calls_test.py NANOVLLM MODEL: calls of tools in the forms of several models, whole and streamed, in each API."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "clients"))
from scripted_model import TEMPLATE, write_model
from serve_test import Server, equal

TOOLS = [{"type": "function", "function": {"name": "edit", "parameters": {
    "type": "object", "properties": {"path": {"type": "string"}, "line": {"type": "integer"}}, "required": ["path"]}}}]
XML = ("<tool_call>\n<function=edit>\n<parameter=path>\n12\n</parameter>\n<parameter=line>\n12\n</parameter>\n</function>\n"
       "</tool_call>")
JSON = '{"name": "edit", "parameters": {"path": "12",  "line": 12}}'
# The answer of each model, how its chat template shows calls, tags that are special tokens, and the arguments of the call.
MODELS = {
    "auto": ("I edit.\n\n" + XML, "", (), '{"path": "12", "line": 12}'),
    "coder": (XML.removeprefix("<tool_call>\n"), "<function=example>", (), '{"path": "12", "line": 12}'),
    "llama": ("<|python_tag|>" + JSON, "<|python_tag|>", ("<|python_tag|>",), '{"path": "12",  "line": 12}'),
    "pythonic": ('<|python_start|>[edit(path="12", line=12)]<|python_end|>', "[func_name1(params_name1=params_value1)]",
                 ("<|python_start|>", "<|python_end|>"), '{"path": "12", "line": 12}'),
    "mistral": ('[TOOL_CALLS]edit[ARGS]{"path": "12", "line": 12}', "[TOOL_CALLS]", ("[TOOL_CALLS]", "[ARGS]"),
                '{"path": "12", "line": 12}'),
}


def chat(**more):
    return {"messages": [{"role": "user", "content": "x"}], "temperature": 0, **more}


def call_of(message):
    """The arguments of the only call."""
    (call,) = message["tool_calls"]
    equal((call["type"], call["function"]["name"]), ("function", "edit"))
    return call["function"]["arguments"]


def test_model(folder, answer, shown, special, arguments):
    template = TEMPLATE.replace("<|im_start|>assistant", "{# " + shown + " #}<|im_start|>assistant") if shown else TEMPLATE
    write_model(folder, {"plain": answer}, template, special)
    server = Server(model=str(folder))
    text = answer[:answer.index("<tool_call>")].rstrip() if "<tool_call>" in answer else ""
    status, whole = server.call("POST", "/v1/chat/completions", chat(tools=TOOLS))
    equal(status, 200)
    choice = whole["choices"][0]
    equal((choice["message"]["content"] or "", call_of(choice["message"])), (text, arguments))
    equal(choice["finish_reason"], "tool_calls")
    if "[TOOL_CALLS]" in special:  # its templates take no other ids
        equal(len(choice["message"]["tool_calls"][0]["id"]), 9)

    deltas = [event["choices"][0]["delta"] for event in server.events("/v1/chat/completions", chat(tools=TOOLS)) if event["choices"]]
    equal("".join(delta.get("content") or "" for delta in deltas), text)
    equal([call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", [])], [arguments])

    body = {"max_tokens": 500, "messages": [{"role": "user", "content": "x"}], "temperature": 0,
            "tools": [{"name": "edit", "input_schema": TOOLS[0]["function"]["parameters"]}]}
    blocks = server.call("POST", "/v1/messages", body)[1]["content"]
    equal([block["input"] for block in blocks if block["type"] == "tool_use"], [{"path": "12", "line": 12}])
    equal("".join(block["text"] for block in blocks if block["type"] == "text"), text)

    # Without tools, and with others, the text is content. It has no special tokens unless the client wants to see them.
    hidden = answer
    for tag in special:
        hidden = hidden.replace(tag, "")
    other = [{"type": "function", "function": {"name": "other"}}]
    for tools in ({}, {"tools": other}, {"tools": TOOLS, "tool_choice": "none"}):
        message = server.call("POST", "/v1/chat/completions", chat(**tools))[1]["choices"][0]["message"]
        equal((message["content"], message.get("tool_calls") or []), (hidden, []))
        message = server.call("POST", "/v1/chat/completions", chat(skip_special_tokens=False, **tools))[1]["choices"][0]["message"]
        equal(message["content"], answer + "<|im_end|>")
    # A call that is cut off is content, too.
    message = server.call("POST", "/v1/chat/completions", chat(tools=TOOLS, max_tokens=8))[1]["choices"][0]["message"]
    equal((hidden.startswith(message["content"]), message.get("tool_calls") or []), (True, []))
    equal(server.stop(), 0)


def test_options(folder):
    """The name of a parser wins over the chat template, and decides whether thoughts are divided from the content."""
    write_model(folder, {"plain": "<think>a</think>" + JSON})
    for options, content in ((["--tool-call-parser", "llama3_json"], None), (["--tool-call-parser", "hermes"], JSON),
                             (["--tool-call-parser", "llama4_json", "--reasoning-parser", "none"], "<think>a</think>")):
        server = Server(*options, model=str(folder))
        message = server.call("POST", "/v1/chat/completions", chat(tools=TOOLS))[1]["choices"][0]["message"]
        equal((message["content"] or None, bool(message.get("tool_calls"))), (content, "hermes" not in options))
        equal(bool(message.get("reasoning_content")), "none" not in options)
        equal(server.stop(), 0)
    for option, known in (("--tool-call-parser", "qwen3_coder"), ("--reasoning-parser", "deepseek_r1")):
        done = subprocess.run([sys.argv[1], "serve", str(folder), option, "kimi"], capture_output=True, text=True, timeout=60)
        equal((done.returncode, done.stderr.count("\n"), option in done.stderr, known in done.stderr), (2, 1, True, True))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for name, model in MODELS.items():
            test_model(Path(folder) / name, *model)
        test_options(Path(folder) / "options")
