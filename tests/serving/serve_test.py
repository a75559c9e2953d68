#!/usr/bin/env python3
"""serve_test.py NANOVLLM MODEL: starts `nanovllm serve` and speaks to it as clients do."""
import atexit
import concurrent.futures
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

KEY = "secret"


def serve(*arguments, **settings):
    """Starts a server that also ends if a check fails: CTest waits until no process has its output open."""
    process = subprocess.Popen([sys.argv[1], "serve", *arguments], **settings)
    atexit.register(process.kill)
    return process


class Server:
    def __init__(self, *options, model=sys.argv[2]):
        self.process = serve(model, "--port", "0", *options, stderr=subprocess.PIPE, text=True)
        self.port = int(re.search(r":(\d+)$", self.process.stderr.readline().strip()).group(1))
        while self.call("GET", "/health")[0] != 200:
            time.sleep(0.05)

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def call(self, method, path, body=None, key=KEY, headers=None):
        connection = self.connect()
        text = body if isinstance(body, (str, bytes, type(None))) else json.dumps(body)
        connection.request(method, path, text, headers or ({"Authorization": "Bearer " + key} if key else {}))
        response = connection.getresponse()
        data = response.read()
        connection.close()
        is_json = response.getheader("Content-Type") == "application/json"
        return response.status, json.loads(data) if is_json and data else data.decode()

    def events(self, path, body):
        status, text = self.call("POST", path, dict(body, stream=True))
        assert status == 200, text
        events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
        assert events.pop() == "[DONE]"
        return [json.loads(event) for event in events]

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(60)


def equal(found, expected):
    assert found == expected, f"{found!r} instead of {expected!r}"


def test_routes(server):
    equal(server.call("GET", "/health", key=None), (200, ""))
    status, page = server.call("GET", "/", key=None)
    equal((status, "<html" in page), (200, True))
    models = server.call("GET", "/v1/models")[1]["data"]
    equal([model["id"] for model in models], ["tiny", "group/tiny 2", "third"])
    for model, path in zip(models, ("tiny", "group/tiny%202", "third")):
        equal(server.call("GET", "/v1/models/" + path), (200, model))
    equal(server.call("GET", "/v1/models/group%2Ftiny%202")[1], models[1])
    for path in ("other", "tiny%2F", "%74iny%", "%FF"):
        status, error = server.call("GET", "/v1/models/" + path)
        equal((status, error["error"]["code"], error["error"]["param"]), (404, "model_not_found", "model"))
    for path in ("/v1/models/", "//v1/models", "//v1//models//"):
        equal(server.call("GET", path), (200, server.call("GET", "/v1/models")[1]))
    equal(server.call("GET", "//v1/models/tiny/"), (200, models[0]))
    info = server.call("GET", "/tokenizer_info")[1]
    equal(("tokenizer_class" in info, "messages" in info["chat_template"]), (True, True))
    equal("/v1/responses" in server.call("GET", "/v1/nowhere")[1]["error"]["message"], True)
    equal(server.call("POST", "/v1/models/tiny", {})[0], 405)
    for path in ("/v1/models", "/v1/models/tiny", "/version", "/load", "/metrics", "/nowhere"):
        equal(server.call("GET", path, key="wrong")[0] in (401, 404), True)
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/tokenize",
                 "/detokenize"):
        equal(server.call("POST", path, {}, key=None)[0], 401)
        equal(server.call("GET", path)[0], 405)
    equal(server.call("GET", "/nowhere")[0], 404)
    ids = server.call("POST", "/tokenize", {"prompt": "Once upon a time"})[1]["tokens"]
    equal(server.call("POST", "/detokenize", {"tokens": ids})[1], {"prompt": "Once upon a time"})


def test_completions(server):
    body = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
    status, whole = server.call("POST", "/v1/completions", body)
    equal(status, 200)
    equal(whole["usage"]["completion_tokens"], 12)
    streamed = server.events("/v1/completions", body)
    equal("".join(e["choices"][0]["text"] for e in streamed), whole["choices"][0]["text"])
    equal(streamed[-1]["choices"][0]["finish_reason"], "length")
    ids = server.call("POST", "/tokenize", {"prompt": body["prompt"]})[1]["tokens"]
    equal(server.call("POST", "/v1/completions", dict(body, prompt=ids))[1]["choices"], whole["choices"])
    both = server.call("POST", "/v1/completions", dict(body, prompt=[body["prompt"], "A dog"], n=2, temperature=0.8, seed=7))[1]
    equal([choice["index"] for choice in both["choices"]], [0, 1, 2, 3])
    echo = server.call("POST", "/v1/completions", dict(body, echo=True, logprobs=2))[1]["choices"][0]
    equal(echo["text"], body["prompt"] + whole["choices"][0]["text"])
    equal("".join(echo["logprobs"]["tokens"]), echo["text"])


def test_chat(server):
    body = {"messages": [{"role": "user", "content": "introduce yourself"}], "max_tokens": 40, "temperature": 0}
    whole = server.call("POST", "/v1/chat/completions", body)[1]
    chunks = server.events("/v1/chat/completions", dict(body, stream_options={"include_usage": True}))
    equal(chunks[0]["choices"][0]["delta"]["role"], "assistant")
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    equal("".join(delta.get("content", "") for delta in deltas), whole["choices"][0]["message"]["content"])
    equal(chunks[-1]["usage"]["completion_tokens"], 40)
    stopped = server.call("POST", "/v1/chat/completions", dict(body, stop=["Tiny"]))[1]["choices"][0]
    equal((stopped["finish_reason"], stopped["stop_reason"], "Tiny" in stopped["message"]["content"]), ("stop", "Tiny", False))


def test_bytes_of_logprobs(server):
    """A token that is a part of a character has its own bytes."""
    smile = "\U0001F642"
    ids = server.call("POST", "/tokenize", {"prompt": smile, "add_special_tokens": False})[1]["tokens"]
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "logprobs": True, "allowed_token_ids": ids[:1]}
    token, = server.call("POST", "/v1/chat/completions", body)[1]["choices"][0]["logprobs"]["content"]
    equal(token["bytes"], list(smile.encode()[:len(token["bytes"])]))
    assert len(token["bytes"]) < 4, token


def test_messages(server):
    body = {"messages": [{"role": "user", "content": "introduce yourself"}], "max_tokens": 20, "temperature": 0}
    whole = server.call("POST", "/v1/messages", body)[1]
    chat = server.call("POST", "/v1/chat/completions", body)[1]
    equal(whole["content"], [{"type": "text", "text": chat["choices"][0]["message"]["content"]}])
    equal((whole["stop_reason"], whole["usage"]["output_tokens"]), ("max_tokens", 20))
    text = server.call("POST", "/v1/messages", dict(body, stream=True))[1]
    events = [json.loads(event.split("\ndata: ")[1]) for event in text.split("\n\n") if event]
    equal("".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta"), whole["content"][0]["text"])
    equal(events[-1], {"type": "message_stop"})
    equal(server.call("POST", "/v1/messages/count_tokens", body)[1], {"input_tokens": chat["usage"]["prompt_tokens"]})
    status, error = server.call("POST", "/v1/messages", dict(body, max_tokens=None))
    equal((status, error["type"]), (400, "error"))
    equal(error["error"], {"type": "invalid_request_error", "message": "max_tokens is missing"})


def test_usage_of_chunks(server):
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "max_tokens": 9, "temperature": 0,
               "ignore_eos": True, "return_token_ids": True}
    for path, prompt in (("/v1/completions", {"prompt": ["Once upon a time", "A dog"]}),
                         ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})):
        *chunks, last = server.events(path, {**options, **prompt})
        counts = {}
        for chunk in chunks:
            counts.setdefault(chunk["choices"][0]["index"], []).append(chunk["usage"]["completion_tokens"])
        for count in counts.values():
            equal((count, count[-1]), (sorted(count), 9))
        equal(last["usage"]["completion_tokens"], 9 * len(counts))


def test_errors(server):
    for path, body, param in (("/v1/completions", {}, "prompt"), ("/v1/completions", {"prompt": "a", "temperature": -1}, "temperature"),
                              ("/v1/completions", {"prompt": "a", "n": 10**9}, "n"), ("/v1/chat/completions", {}, "messages"),
                              ("/v1/completions", {"prompt": "a", "model": "other"}, "model")):
        status, error = server.call("POST", path, body)
        equal((status, error["error"]["param"]), (404 if param == "model" else 400, param))
    word = server.call("POST", "/detokenize", {"tokens": [500, 500]})[1]["prompt"]
    # All that is allowed is forbidden, from the first token on or from the second one.
    for forbidden in ({"stop_token_ids": [500], "min_tokens": 2}, {"bad_words": [word]}):
        fields = dict(forbidden, prompt="a", max_tokens=4, allowed_token_ids=[500])
        status, error = server.call("POST", "/v1/completions", fields)
        equal((status, error["error"]["type"]), (400, "invalid_request_error"))
        assert "allowed_token_ids" in error["error"]["message"], error
        *_, last = server.call("POST", "/v1/completions", dict(fields, stream=True))[1].split("data: ")
        equal(json.loads(last)["error"]["type"], "invalid_request_error")
    for text in ("", "{", "[1]", '{"prompt": 1e400}', "[" * 100000, b"\xff"):
        equal(server.call("POST", "/v1/completions", text)[0], 400)
    long = "a " * 100000
    for path, body in (("/v1/completions", {"prompt": long}),
                       ("/v1/chat/completions", {"messages": [{"role": "user", "content": long}]})):
        status, error = server.call("POST", path, body)
        equal((status, error["error"]["param"], error["error"]["code"]), (400, next(iter(body)), "context_length_exceeded"))
        assert re.search(r"has \d+ tokens; .* maximum context length, .* at most 2047$", error["error"]["message"]), error


def test_errors_of_tokenizing(server):
    for path, body, param in (("/tokenize", {"prompt": "a", "model": "other"}, "model"),
                              ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "model": "other"}, "model"),
                              ("/tokenize", {"prompt": "a", "add_special_tokens": 0}, "add_special_tokens"),
                              ("/tokenize", {"prompt": "a", "return_token_strs": True}, "return_token_strs"),
                              ("/tokenize", {}, "prompt"), ("/detokenize", {}, "tokens"),
                              ("/detokenize", {"tokens": [5], "model": "other"}, "model"),
                              ("/detokenize", {"tokens": [5, 8192]}, "tokens"), ("/detokenize", {"tokens": [-1]}, "tokens"),
                              ("/detokenize", {"tokens": "a"}, "tokens")):
        status, error = server.call("POST", path, body)
        equal((body, status, error["error"]["param"]), (body, 404 if param == "model" else 400, param))
    equal(server.call("POST", "/tokenize", {"prompt": "a", "model": "third"})[0], 200)


def test_clients_that_go(server):
    for _ in range(20):
        connection = server.connect()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "Once", "max_tokens": 1500, "stream": True,
                                                                 "ignore_eos": True}), {"Authorization": "Bearer " + KEY})
        connection.getresponse().read(10)
        connection.close()
    for _ in range(200):
        if server.call("GET", "/load")[1]["server_load"] == 0:
            return
        time.sleep(0.05)
    raise AssertionError("requests of clients that went are still running")


def test_steps_are_short():
    """On the CPU a step has at most 512 tokens, so that a long prompt does not delay the other answers for long."""
    server = Server("--device", "cpu", "--api-key", KEY)
    status, answer = server.call("POST", "/v1/completions", {"prompt": [100 + i % 50 for i in range(1300)], "max_tokens": 1})
    equal((status, answer["usage"]["prompt_tokens"]), (200, 1300))
    steps = re.findall(r"vllm:iteration_tokens_total_bucket\{.*le=\"(?:512|\+Inf)\"\} (\d+)", server.call("GET", "/metrics")[1])
    equal(len(steps), 2)
    equal(steps[0], steps[1])
    equal(server.stop(), 0)


def test_many_at_once(server):
    body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    expected = server.call("POST", "/v1/completions", body)[1]["choices"]
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        for status, answer in pool.map(lambda _: server.call("POST", "/v1/completions", body), range(200)):
            equal((status, answer["choices"]), (200, expected))


def test_a_sentencepiece_tokenizer():
    """Its decoder removes the space at the start of a text, but an answer continues the text of its prompt."""
    model = os.path.join(os.path.dirname(__file__), "../../../shared/data/stories260k")
    if not os.path.exists(model):
        print("test_a_sentencepiece_tokenizer skipped: there is no", model)
        return
    server = Server(model=model)
    body = {"prompt": "Once upon", "max_tokens": 6, "temperature": 0, "logprobs": 0}
    choice, = server.call("POST", "/v1/completions", body)[1]["choices"]
    equal((choice["text"], choice["logprobs"]["text_offset"]), (" a time, there was a", [0, 2, 7, 8, 14, 18]))
    chunks = [event["choices"][0] for event in server.events("/v1/completions", body)]
    equal("".join(chunk["text"] for chunk in chunks), choice["text"])
    offsets = [begin for chunk in chunks if chunk["logprobs"] for begin in chunk["logprobs"]["text_offset"]]
    equal(offsets, choice["logprobs"]["text_offset"])
    echo, = server.call("POST", "/v1/completions", dict(body, echo=True))[1]["choices"]
    equal(echo["text"], "Once upon a time, there was a")
    equal(echo["logprobs"]["text_offset"], [0, 0, 4, 9, 11, 16, 17, 23, 27])  # the BOS is no part of the text
    alone, = server.call("POST", "/v1/completions", dict(body, prompt=""))[1]["choices"]  # only a BOS
    equal(alone["text"], "Once upon a time, there")
    # The vocabulary is so small that a request can forbid all of it.
    status, error = server.call("POST", "/v1/completions", {"prompt": "a", "stop_token_ids": list(range(512)), "min_tokens": 1})
    equal((status, error["error"]["type"]), (400, "invalid_request_error"))
    equal(server.stop(), 0)


def test_drain():
    server = Server("--shutdown-timeout", "20")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.call, "POST", "/v1/completions", {"prompt": "Once", "max_tokens": 300, "ignore_eos": True})
        while server.call("GET", "/load")[1]["server_load"] == 0:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        while server.call("GET", "/health")[0] != 503:
            time.sleep(0.01)
        equal(server.call("POST", "/v1/completions", {"prompt": "a"})[0], 503)
        equal(running.result()[1]["usage"]["completion_tokens"], 300)
    equal(server.process.wait(60), 0)


def test_a_template_that_is_broken():
    """The process ends with one error and status 2 after the model has been loaded."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(sys.argv[2], folder, dirs_exist_ok=True)
        with open(folder + "/chat_template.jinja", "w", encoding="utf8") as file:
            file.write("{% if %}")
        done = subprocess.run([sys.argv[1], "serve", folder, "--port", "0"], capture_output=True, text=True, timeout=60)
        equal((done.returncode, done.stderr.count("error: ")), (2, 1))


def main():
    server = Server("--api-key", KEY, "--served-model-name", "tiny", "group/tiny 2", "--served-model-name=third", "--dtype", "float32",
                    "--max-num-seqs", "64")
    for test in (test_routes, test_completions, test_chat, test_bytes_of_logprobs, test_messages, test_usage_of_chunks, test_errors,
                 test_errors_of_tokenizing, test_clients_that_go, test_many_at_once):
        test(server)
        print(test.__name__, "passed", flush=True)
    equal(server.stop(), 0)
    full = Server("--max-num-seqs", "1", "--max-queued-requests", "0")
    status, error = full.call("POST", "/v1/completions", {"prompt": ["a", "b"], "n": 3})  # never fits
    equal((status, error["error"]["param"]), (400, "n"))
    assert re.search("n 3 times 2 prompts is 6 .* at most 1 ", error["error"]["message"]), error
    stream = full.connect()
    stream.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 1500, "ignore_eos": True, "stream": True}))
    stream.getresponse().read(10)
    status, error = full.call("POST", "/v1/completions", "{")  # costs no work while the queue is full
    equal((status, error["error"]["message"].split(" already")[0]), (429, "1 requests are running or waiting"))
    stream.close()
    equal(full.stop(signal.SIGINT), 0)
    test_steps_are_short()
    test_a_sentencepiece_tokenizer()
    test_drain()
    test_a_template_that_is_broken()


if __name__ == "__main__":
    main()
