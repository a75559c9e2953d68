#!/usr/bin/env python3
"""memory_test.py NANOVLLM MODEL: what one request may hold in memory, and what happens if there is none left."""
import concurrent.futures
import json
import re
import resource
import sys

from serve_test import Server, equal

MIB = 1 << 20


def status(server, name):
    with open(f"/proc/{server.process.pid}/status") as file:
        return int(re.search(rf"^{name}:\s+(\d+) kB", file.read(), re.M).group(1)) * 1024


def growth(server, work):
    """How far the memory grows beyond what is in use now while work() runs."""
    with open(f"/proc/{server.process.pid}/clear_refs", "w") as file:
        file.write("5")  # the peak becomes what is in use now
    before = status(server, "VmRSS")
    work()
    return status(server, "VmHWM") - before


def hostile():
    """Names, requests, whether they are refused, and the most that they may take in MiB."""
    short = {"prompt": "Once", "max_tokens": 1}
    prompts = {"prompt": ["Once"] * 256, "max_tokens": 1}
    ids = [i % 512 for i in range(250_000)]

    def chat(content):
        return {"messages": [{"role": "user", "content": content}], "max_tokens": 1}

    completions, chats, messages = "/v1/completions", "/v1/chat/completions", "/v1/messages"
    yield "stop, many choices", completions, dict(short, n=128, stop=["x" * 1_500_000]), 200, 120
    yield "a longer one", completions, dict(short, n=128, stop=["x" * 8_000_000]), 200, 160
    yield "stop, many prompts", completions, dict(prompts, stop=["x" * 1_000_000]), 200, 120
    yield "allowed_token_ids, many prompts", completions, dict(prompts, allowed_token_ids=ids), 200, 80
    yield "allowed_token_ids, many choices", completions, dict(short, n=128, allowed_token_ids=ids), 200, 80
    yield "bad_words", completions, dict(short, n=128, bad_words=["x" * 1_000_000]), 400, 40
    yield "many bad_words", completions, dict(short, n=128, bad_words=["ab c d" * 40] * 1000), 200, 60
    yield "stop_token_ids", completions, dict(prompts, stop_token_ids=ids), 400, 60
    yield "biases", completions, dict(prompts, logit_bias={str(i % 512): 1 for i in range(512)}), 200, 60
    yield "empty parts", chats, chat([{}] * 1_000_000), 400, 40
    yield "texts as parts", chats, chat([""] * 1_000_000), 400, 40
    yield "small parts", chats, chat([{"type": "text", "text": "a"}] * 120_000), 400, 200
    yield "small messages", chats, dict(messages=[{"role": "user", "content": ""}] * 100_000, max_tokens=1), 400, 200
    yield "empty blocks", messages, chat([{}] * 1_000_000), 400, 40
    yield "small blocks", messages, chat([{"type": "text", "text": "a"}] * 120_000), 400, 200
    yield "tools", chats, dict(chat("a"), tools=[{}] * 500_000), 400, 40
    yield "token ids", completions, {"prompt": [[1] * 5000] * 800, "max_tokens": 1}, 400, 300
    yield "log-probabilities", completions, dict(short, prompt=["Once"] * 8, n=128, max_tokens=2000, logprobs=20), 400, 40
    yield "a long chat", chats, chat("word " * 1_600_000), 400, 120
    yield "tokenize", "/tokenize", {"messages": [{"role": "user", "content": [{}] * 1_000_000}]}, 400, 40
    yield "detokenize", "/detokenize", {"tokens": [1] * 3_000_000}, 400, 60


def test_one_request_takes_little(server):
    wrong = []
    for name, path, body, expected, most in hostile():
        text = json.dumps(body)
        found = []
        grown = growth(server, lambda: found.append(server.call("POST", path, text)))
        answer = found[0]
        print(f"{name}: {len(text) / MIB:.1f} MiB of body take {grown / MIB:.0f} MiB: {answer[0]} "
              f"{str(answer[1].get('error', ''))[:120]}")
        if answer[0] != expected or grown > most * MIB:
            wrong.append(name)
    equal(wrong, [])


def test_long_chats_at_the_same_time(server):
    text = json.dumps({"messages": [{"role": "user", "content": "word " * 1_600_000}], "max_tokens": 1})

    def chat(_):
        equal(server.call("POST", "/v1/chat/completions", text)[0], 400)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        grown = growth(server, lambda: list(pool.map(chat, range(8))))
    print(f"eight chats of 8 MB take {grown / MIB:.0f} MiB")
    assert grown < 300 * MIB


def test_memory_is_given_back(server):
    after = status(server, "VmRSS")
    print(f"{after / MIB:.0f} MiB are in use afterwards")
    assert after < 350 * MIB  # with 128 MiB of the KV cache


def test_out_of_memory_ends_one_request(server):
    for left in [32, 128, 512]:
        most = status(server, "VmSize") + left * MIB
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
        for name, path, body, _, _ in hostile():
            try:
                code = server.call("POST", path, body)[0]
            except OSError:  # the connection had no memory for the request
                code = 503
            assert code in (200, 400, 500, 503), f"{name} with {left} MiB left: {code}"
            print(f"{name} with {left} MiB left: {code}")
            answer = server.call("POST", "/v1/completions", {"prompt": "Once upon", "max_tokens": 4})
            equal(answer[0], 200)
    equal(server.stop(), 0)


if __name__ == "__main__":
    server = Server()
    test_one_request_takes_little(server)
    test_long_chats_at_the_same_time(server)
    test_memory_is_given_back(server)
    test_out_of_memory_ends_one_request(server)
