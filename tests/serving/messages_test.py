#!/usr/bin/env python3
"""messages_test.py NANOVLLM MODEL: what clients send in conversations, in all three APIs, and streams that wait."""
import json
import sys
import threading
import time

from serve_test import Server, equal

HELLO = {"role": "user", "content": "Tell me a story"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def prompt_of(server, messages, **fields):
    """The text that the model reads."""
    status, answer = server.call("POST", "/tokenize", {"messages": messages, **fields})
    equal(status, 200)
    return server.call("POST", "/detokenize", {"tokens": answer["tokens"]})[1]["prompt"]


def count(server, path, body):
    status, answer = server.call("POST", path, body)
    equal(status, 200)
    return answer["input_tokens"]


def test_an_answer_that_is_begun(server):
    """Greedy answers to the same tokens are the same, whichever API continues them."""
    begun = "Once upon a time, there was a little"
    text = prompt_of(server, [HELLO, {"role": "assistant", "content": begun}])
    equal(text.endswith(begun), True)
    plain = server.call("POST", "/v1/completions", {"prompt": text, "max_tokens": 20, "temperature": 0, "add_special_tokens": False})
    expected = plain[1]["choices"][0]["text"]
    answer = {"role": "assistant", "content": begun}
    body = {"max_tokens": 20, "temperature": 0}
    for last in (answer, {"role": "assistant", "content": [{"type": "text", "text": begun}]}):
        for more in ({}, {"continue_final_message": True, "add_generation_prompt": False}):
            chat = server.call("POST", "/v1/chat/completions", {**body, **more, "messages": [HELLO, last]})[1]
            equal(chat["choices"][0]["message"]["content"], expected)
        message = server.call("POST", "/v1/messages", {**body, "messages": [HELLO, last]})[1]
        equal(message["content"], [{"type": "text", "text": expected}])
    response = server.call("POST", "/v1/responses", {"temperature": 0, "max_output_tokens": 20, "input": [HELLO, answer]})[1]
    equal([part["text"] for item in response["output"] for part in item["content"]], [expected])
    chunks = server.events("/v1/chat/completions", {**body, "messages": [HELLO, answer]})
    equal("".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks), expected)
    equal(prompt_of(server, [HELLO, answer], continue_final_message=False).endswith(begun), False)


def test_thoughts_that_are_begun(server):
    """What the model adds to thoughts that break off are thoughts, until it ends them."""
    body = {"messages": [HELLO, {"role": "assistant", "content": "<think>\nWell,"}], "max_tokens": 8, "temperature": 0}
    message = server.call("POST", "/v1/chat/completions", body)[1]["choices"][0]["message"]
    equal(("reasoning" in message, message.get("reasoning") == message.get("reasoning_content")), (True, True))


def test_roles(server):
    for role in ("system", "developer"):
        equal("BANANA" in prompt_of(server, [HELLO, {"role": role, "content": "Say BANANA."}]), True)
        equal("BANANA" in prompt_of(server, [{"role": role, "content": "Say BANANA."}, HELLO]), True)
    body = {"max_tokens": 1, "messages": [HELLO]}
    more = [{"role": "system", "content": "Say BANANA."}]
    equal(count(server, "/v1/messages/count_tokens", {**body, "messages": [HELLO, *more]}) >
          count(server, "/v1/messages/count_tokens", body), True)


def test_lines_for_the_operator(server):
    system = [{"type": "text", "text": "You are kind."}]
    sizes = set()
    for session in ("a", "bbbbbbbb"):
        line = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.332; cch={session};"}
        for content in ([line, *system], line["text"] + "\n" + system[0]["text"]):
            sizes.add(count(server, "/v1/messages/count_tokens", {"messages": [HELLO], "system": content}))
    equal(sizes, {count(server, "/v1/messages/count_tokens", {"messages": [HELLO], "system": system})})


def test_media(server, dropping):
    blocks = {"/v1/chat/completions": IMAGE, "/v1/messages": {"type": "image", "source": {"type": "base64", "data": "AAAA"}},
              "/v1/responses": {"type": "input_image", "image_url": "u"}}
    for path, block in blocks.items():
        text = {"type": "input_text" if path == "/v1/responses" else "text", "text": "What is this?"}
        conversation = [{"role": "user", "content": [text, block]}]
        body = {"input" if path == "/v1/responses" else "messages": conversation, "max_tokens": 1}
        status, error = server.call("POST", path, body)
        equal((status, block["type"] in error["error"]["message"], "--allow-dropped-media" in error["error"]["message"]),
              (400, True, True))
        equal(dropping.call("POST", path, body)[0], 200)
    text = prompt_of(dropping, [{"role": "user", "content": [{"type": "text", "text": "What?"}, IMAGE]}])
    equal("[image omitted: this model reads text]" in text, True)


def test_blocks_that_are_new(server):
    reference = {"type": "tool_reference", "tool_name": "find_BANANA"}
    text = prompt_of(server, [{"role": "user", "content": [{"type": "text", "text": "a"}, reference]}])
    equal("find_BANANA" in text, True)


def test_numbers(server):
    for path, name in (("/v1/chat/completions", "max_tokens"), ("/v1/messages", "max_tokens"), ("/v1/responses", "max_output_tokens")):
        for number in ("5", 5.0):
            body = {"messages": [HELLO], "input": "a", name: number, "temperature": "0.5", "top_k": 3.0}
            status, answer = server.call("POST", path, body)
            equal(status, 200)
            equal(answer["usage"].get("completion_tokens") or answer["usage"].get("output_tokens"), 5)


def test_a_stream_that_waits_is_not_silent():
    """One sequence runs, and the streams of all APIs wait behind it."""
    server = Server("--max-num-seqs", "1", "--sse-keepalive", "0.05", "--served-model-name", "tiny")
    stop = threading.Event()

    def keep_busy():
        while not stop.is_set():
            server.call("POST", "/v1/completions", {"prompt": ["Once"] * 20, "max_tokens": 300, "ignore_eos": True})

    busy = threading.Thread(target=keep_busy, daemon=True)
    busy.start()
    time.sleep(0.2)
    bodies = {"/v1/chat/completions": {"messages": [HELLO]}, "/v1/messages": {"messages": [HELLO]}, "/v1/responses": {"input": "a"},
              "/v1/completions": {"prompt": "a"}}
    for path, body in bodies.items():
        connection = server.connect()
        connection.request("POST", path, json.dumps({**body, "stream": True, "max_tokens": 2}))
        response = connection.getresponse()
        line = b"data"
        while line and not line.startswith(b":"):
            line = response.readline()
        equal((path, line), (path, b": still working\n"))
        connection.close()
    stop.set()
    busy.join()
    server.stop()


def main():
    server = Server("--served-model-name", "tiny")
    dropping = Server("--served-model-name", "tiny", "--allow-dropped-media")
    for test in (test_an_answer_that_is_begun, test_thoughts_that_are_begun, test_roles, test_lines_for_the_operator,
                 test_blocks_that_are_new, test_numbers):
        print(test.__name__, flush=True)
        test(server)
    test_media(server, dropping)
    equal((server.stop(), dropping.stop()), (0, 0))
    print("test_a_stream_that_waits_is_not_silent", flush=True)
    test_a_stream_that_waits_is_not_silent()


if __name__ == "__main__":
    main()
    print("ok")
    sys.exit(0)
