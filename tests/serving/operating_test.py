#!/usr/bin/env python3
"""operating_test.py NANOVLLM MODEL: what operators rely on: the log, the socket, keys, options, and how the server ends."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from serve_test import KEY, Server, equal, serve

LONG = {"prompt": "Once upon a time", "max_tokens": 1500, "ignore_eos": True}
ROUTES = [("GET", "/v1/models"), ("GET", "/version"), ("GET", "/load"), ("GET", "/metrics"), ("POST", "/v1/completions"),
          ("POST", "/v1/chat/completions"), ("POST", "/tokenize"), ("POST", "/detokenize")]


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


class UnixServer(Server):
    """A server on a Unix socket, so that its stderr need not be read to find it."""

    def __init__(self, path, *options, stderr=subprocess.DEVNULL, **settings):
        self.path = path
        self.process = serve(sys.argv[2], "--uds", path, *options, stderr=stderr, **settings)
        self.wait_until_ready()

    def wait_until_ready(self):
        while True:
            assert self.process.poll() is None, f"ended with {self.process.returncode}"
            try:
                if self.call("GET", "/health")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)

    def connect(self):
        return UnixConnection(self.path)


def answers(server):
    return server.call("POST", "/v1/completions", {"prompt": "Once", "max_tokens": 2})[0] == 200


def run(*arguments, **settings):
    done = subprocess.run([sys.argv[1], "serve", *arguments], capture_output=True, text=True, timeout=60, **settings)
    return done.returncode, done.stderr


def raw(server, text):
    """The status line of the answer to bytes that no client library would send."""
    connection = server.connect()
    connection.connect()
    with connection.sock:
        connection.sock.sendall(text)
        return connection.sock.recv(1000).split(b"\r\n")[0]


def test_access_log():
    server = Server("--disable-access-log-for-endpoints", "/health,/load")
    body = {"prompt": "Once upon a time", "max_tokens": 7, "ignore_eos": True}
    connection = server.connect()
    connection.request("POST", "/v1/completions", json.dumps(body), {"X-Request-Id": "from-the-client"})
    response = connection.getresponse()
    equal(response.getheader("X-Request-Id"), "from-the-client")
    response.read()
    connection.close()
    server.events("/v1/completions", body)
    equal(server.call("POST", "/v1/completions", {"prompt": 1})[0], 400)
    equal(server.call("GET", "/load")[0], 200)
    # Neither an id nor a path can make a line of its own, or look like a field.
    raw(server, b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a b=c\r\n\r\n")
    raw(server, b"GET /\x1b[2J\xff HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a\x07\r\n\r\n")
    raw(server, b"GET /%0ainfo:%20forged HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: b\r\n  info: forged\r\n\r\n")
    raw(server, b"not HTTP\r\n\r\n")
    stream = server.connect()
    stream.request("POST", "/v1/completions", json.dumps(dict(LONG, stream=True)), {"X-Request-Id": "leaves"})
    stream.getresponse().read(10)
    stream.close()
    while server.call("GET", "/load")[1]["server_load"] > 0:
        time.sleep(0.01)
    equal(server.stop(), 0)
    lines = server.process.stderr.read().splitlines()
    equal([line for line in lines if "forged" in line and not line.endswith("end=refused")], [])
    requests = [line for line in lines if re.match(r"info: \S+ \S+ \S+ \d{3} ", line)]
    equal(len(requests), 8)
    tokens = r"prompt_tokens=4 cached_tokens=\d+ generated_tokens=7 first_token=\S+s total=\S+s end=length"
    assert re.fullmatch(r"info: from-the-client POST /v1/completions 200 " + tokens, requests[0]), requests[0]
    assert re.fullmatch(r"info: req-\w+ POST /v1/completions 200 " + tokens, requests[1]), requests[1]
    assert re.search(r" 400 total=\S+s end=refused$", requests[2]), requests[2]
    for line in requests[3:7]:
        assert re.fullmatch(r"info: req-\w+ \S+ \S+ 4\d\d total=\S+s end=refused", line), line
    assert re.match(r"info: leaves POST /v1/completions 200 .* end=client_gone$", requests[7]), requests[7]
    for option in ("--disable-uvicorn-access-log", "--disable-access-log"):
        quiet = Server(option)
        assert answers(quiet)
        equal(quiet.stop(), 0)
        equal(re.findall("/v1/completions", quiet.process.stderr.read()), [])


def test_a_log_that_cannot_be_written(folder):
    """A full disk, a closed stderr, and a pipe that nobody reads: the server answers, and ends as it should."""
    def of(stderr, **settings):
        server = UnixServer(os.path.join(folder, "socket"), stderr=stderr, **settings)
        for _ in range(1000):  # about 100 KB of lines; a pipe has 64 KiB
            server.call("GET", "/load")
        assert answers(server)
        equal(server.stop(), 0)

    if os.path.exists("/dev/full"):
        with open("/dev/full", "w", encoding="utf8") as full:
            of(full)
    of(None, preexec_fn=lambda: os.close(2))
    reading, writing = os.pipe()
    of(writing)
    os.close(reading)
    of(writing)
    os.close(writing)


def test_unix_socket(folder):
    path = os.path.join(folder, "socket")
    server = UnixServer(path)
    assert answers(server)
    status, error = run(sys.argv[2], "--uds", path)
    equal((status, error.count("error: "), "a server listens there already" in error), (2, 1, True))
    assert answers(server)
    server.process.kill()
    server.process.wait()
    assert os.path.exists(path)  # a killed server cannot remove it
    server = UnixServer(path)
    assert answers(server)
    os.remove(path)
    successor = UnixServer(path)
    equal(server.stop(), 0)  # leaves the file, which belongs to the other one
    assert answers(successor)
    equal(successor.stop(), 0)
    assert not os.path.exists(path)
    with open(path, "w", encoding="utf8") as file:
        file.write("data")
    equal(run(sys.argv[2], "--uds", path)[0], 2)
    with open(path, encoding="utf8") as file:
        equal(file.read(), "data")
    os.remove(path)


def test_keys(folder):
    """Every route but /health asks for the key, whatever the method."""
    path = os.path.join(folder, "keys")
    with open(path, "w", encoding="utf8") as file:
        file.write("first\r\n\nsecond\n")
    environment = dict(os.environ, VLLM_API_KEY="from-vllm")
    for options, keys, env in ((["--api-key", "a", "--api-key", "b"], ["a", "b"], environment),
                               (["--api-key", "a", "--api-key-file", path], ["a", "first", "second"], environment),
                               ([], ["from-vllm"], environment),
                               ([], ["ours"], dict(environment, NANOVLLM_API_KEY="ours"))):
        server = UnixServer(os.path.join(folder, "socket"), *options, env=env)
        for key in keys:
            equal(server.call("GET", "/v1/models", key=key)[0], 200)
        for method, route in ROUTES + [("HEAD", "/v1/models"), ("HEAD", "/metrics")]:
            for key in (None, "", "wrong", keys[0] + "x", keys[0][:-1], keys[0].upper()):
                equal((route, server.call(method, route, "{}", key=key)[0]), (route, 401))
        for scheme, status in (("bearer ", 200), ("BEARER ", 200), ("Basic ", 401), ("", 401)):
            equal(server.call("GET", "/v1/models", headers={"Authorization": scheme + keys[0]})[0], status)
        # A body for which there is no key, or no route, is not waited for.
        for method, route, status in (("POST", "/v1/completions", 401), ("POST", "/nowhere", 404), ("POST", "/health", 405)):
            connection = server.connect()
            connection.request(method, route, headers={"Content-Length": "1000000"})
            equal(connection.getresponse().status, status)
            connection.close()
        equal(server.call("GET", "/health", key=None)[0], 200)
        equal(server.call("HEAD", "/health", key=None)[0], 200)
        equal(server.stop(), 0)
    with open(path, "w", encoding="utf8") as file:
        file.write("\n")
    for options in (["--api-key", ""], ["--api-key", "a b"], ["--api-key-file", path], ["--api-key-file", path + "x"]):
        status, error = run(sys.argv[2], *options)
        equal((status, error.count("\n")), (2, 1))


def test_cors(folder):
    server = UnixServer(os.path.join(folder, "socket"), "--api-key", KEY, "--allowed-origins", '["http://a.b", "http://c.d"]',
                        "--allow-credentials")

    def headers(method, route, **given):
        connection = server.connect()
        connection.request(method, route, headers={name.replace("_", "-"): value for name, value in given.items()})
        response = connection.getresponse()
        response.read()
        return response.status, response

    asking = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "authorization"}
    status, found = headers("OPTIONS", "/v1/chat/completions", Origin="http://a.b", **asking)  # without a key
    equal((status, found.getheader("Access-Control-Allow-Origin")), (200, "http://a.b"))
    equal(found.getheader("Access-Control-Allow-Methods"), "POST")
    equal(found.getheader("Access-Control-Allow-Headers"), "authorization")
    equal(headers("OPTIONS", "/v1/chat/completions", Origin="http://evil", **asking)[0], 403)
    equal(headers("OPTIONS", "/v1/chat/completions")[0], 405)
    status, found = headers("GET", "/v1/models", Origin="http://c.d")  # a page may read errors, too
    equal((status, found.getheader("Access-Control-Allow-Origin")), (401, "http://c.d"))
    status, found = headers("POST", "/v1/completions", Origin="http://c.d", Authorization="Bearer " + KEY, Content_Length=str(10**9),
                            Content_Type="application/json")
    equal((status, found.getheader("Access-Control-Allow-Origin")), (413, "http://c.d"))
    equal(headers("GET", "/health", Origin="http://evil")[1].getheader("Access-Control-Allow-Origin"), None)
    equal(server.stop(), 0)


def test_vllm_options(folder):
    """A server starts with the options that deployments of vLLM use, and refuses those that ask for something else."""
    path = os.path.join(folder, "socket")
    server = serve("--served_model_name", "m", "other", "--model", sys.argv[2], "--uds", path, "--tensor_parallel_size=1",
                   "--gpu-memory-utilization", "0.8", "--max-model-len", "512", "--max-num-seqs", "8", "--max-num-batched-tokens",
                   "256", "--enable-prefix-caching", "--enable-chunked-prefill", "--disable-log-requests", "--trust-remote-code",
                   "--dtype", "float32", "--uvicorn-log-level", "warning", "--root-path", "/llm", "--pipeline-parallel-size", "1",
                   "--distributed-executor-backend", "mp", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
                   "--reasoning-parser", "qwen3", "--swap-space", "4", "--disable-log-stats", "-dp", "1", stderr=subprocess.PIPE,
                   text=True)
    client = UnixServer.__new__(UnixServer)
    client.path, client.process = path, server
    client.wait_until_ready()
    equal([model["id"] for model in client.call("GET", "/v1/models")[1]["data"]], ["m", "other"])
    equal(client.stop(), 0)
    equal(server.stderr.read(), "")  # the log level
    equal(run("--served-model-name", "a", "--model=nowhere", "--port", "0")[1].count("nowhere"), 1)
    for options in (["--enable-lora"], ["--ssl-keyfile", "k"], ["--middleware=x"], ["-pp", "2"], ["--kv-transfer-config", '{"a": 1}'],
                    ["--speculative-config.method", "ngram"], ["--tool-call-parser", "kimi_k2"],
                    ["--override-generation-config", '{"eos_token_id": 1}'], ["--generation-config", "nowhere"],
                    ["--default-chat-template-kwargs", "[]"], ["--max-logprobs", "21"], ["--data-parallel-size", "2"],
                    ["--distributed-executor-backend", "ray"], ["--allowed-origins", "[1]"], ["--allowed-origins", "a b"],
                    ["--no-such-option"], ["--served-model-name", "--port", "0"], ["--served-model-name", "a", ""],
                    ["--served-model-name="], ["--host", ""], ["--allowed-hosts", "a:1"], ["--allowed-hosts", "http://a"],
                    ["--port", "65536"], ["--max-queued-requests", "-1"], ["--shutdown-timeout", "-1"], ["--uds", "a" * 200]):
        status, error = run(sys.argv[2], *options)
        name = {"-pp": "--pipeline-parallel-size", "--max-logprobs": "max_logprobs"}.get(options[0], options[0]).split("=")[0]
        name = name.split(".")[0]
        equal((status, error.count("\n"), name in error), (2, 1, True))


def test_models_while_loading():
    """From the first moment on /v1/models answers 503 or the model's real length."""
    server = Server.__new__(Server)
    server.process = serve(sys.argv[2], "--port", "0", stderr=subprocess.PIPE, text=True)
    server.port = int(re.search(r":(\d+)$", server.process.stderr.readline().strip()).group(1))
    status = 503
    while status == 503:
        status, answer = server.call("GET", "/v1/models")
    equal((status, answer["data"][0]["max_model_len"]), (200, 2048))
    equal(server.call("GET", "/v1/models/" + answer["data"][0]["id"].replace("/", "%2F"))[0], 200)
    equal(server.stop(), 0)


def test_defaults_of_requests(folder):
    """Sampling values and variables of the template that requests have unless they say something else."""
    with open(os.path.join(folder, "generation_config.json"), "w", encoding="utf8") as file:
        json.dump({"temperature": 0, "max_new_tokens": 7}, file)
    server = UnixServer(os.path.join(folder, "socket"), "--generation-config", folder, "--override-generation-config",
                        '{"max_new_tokens": 3}', "--max-logprobs", "2", "--default-chat-template-kwargs",
                        '{"enable_thinking": false}', "--max-model-len", "1k", "-O3", "--compilation-config.mode", "3",
                        stderr=subprocess.PIPE, text=True)
    note = "info: these options of vLLM have no effect here: --optimization-level, --compilation-config\n"
    lines = [server.process.stderr.readline() for _ in range(2)]  # the first one says where it listens
    equal(lines[1], note)
    messages = [{"role": "user", "content": "introduce yourself"}]

    def prompt(**more):
        return server.call("POST", "/tokenize", dict(more, messages=messages))[1]["tokens"]

    def chat(**more):
        status, answer = server.call("POST", "/v1/chat/completions", dict(more, messages=messages, ignore_eos=True))
        return status, answer["usage"]["completion_tokens"] if status == 200 else answer["error"]

    equal(server.call("GET", "/v1/models")[1]["data"][0]["max_model_len"], 1000)
    equal(prompt(), prompt(chat_template_kwargs={"enable_thinking": False}))
    assert prompt() != prompt(chat_template_kwargs={"enable_thinking": True})
    equal(chat(), (200, 3))
    equal(chat(max_tokens=5), (200, 5))
    # The temperature of the file is 0, so all answers are alike; a request may have another one.
    for more, least, most in (({}, 1, 1), ({"temperature": 1.5, "max_tokens": 40}, 2, 8)):
        choices = server.call("POST", "/v1/chat/completions", dict(more, messages=messages, n=8))[1]["choices"]
        assert least <= len({choice["message"]["content"] for choice in choices}) <= most
    equal(chat(logprobs=True, top_logprobs=2)[0], 200)
    status, error = chat(logprobs=True, top_logprobs=3)
    equal((status, "max_logprobs, 2" in error["message"]), (400, True))
    status, error = server.call("POST", "/v1/completions", {"prompt": "a", "logprobs": 3})
    equal((status, "max_logprobs, 2" in error["error"]["message"]), (400, True))
    equal(server.stop(), 0)


def test_chat_template(folder):
    path = os.path.join(folder, "template.jinja")
    with open(path, "w", encoding="utf8") as file:
        file.write("{% for m in messages %}{{ m.content }}{% endfor %}")
    server = Server("--chat-template", path)
    ids = [server.call("POST", "/tokenize", body)[1]["tokens"] for body in
           ({"messages": [{"role": "user", "content": "Once upon"}]}, {"prompt": "Once upon"})]
    equal(*ids)
    # A template of a request is refused; one that never ends is an error for its request alone.
    messages = [{"role": "user", "content": "a"}]
    status, error = server.call("POST", "/v1/chat/completions", {"messages": messages, "chat_template": "{{ 1 }}"})
    equal((status, "chat_template" in error["error"]["message"]), (400, True))
    equal(server.stop(), 0)
    hostile = ("{% for i in range(n) %}{% for j in range(n) %}{{ i }}{% endfor %}{% endfor %}", "{{ messages.__class__ }}",
               "{{ (''.__class__) }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ 'a' * n * n }}")
    for text in hostile:
        with open(path, "w", encoding="utf8") as file:
            file.write("{% if n %}" + text + "{% else %}x{% endif %}")
        server = Server("--chat-template", path)
        body = {"messages": messages, "max_tokens": 2}
        status, error = server.call("POST", "/v1/chat/completions", dict(body, chat_template_kwargs={"n": 10**9}))
        assert status in (200, 400), error  # an unknown attribute may be empty, as in Jinja
        if status == 400:
            equal(folder in json.dumps(error), False)
        equal(server.call("POST", "/v1/chat/completions", body)[0], 200)
        equal(server.stop(), 0)


def listening_addresses(pid):
    """Where the sockets of a process listen."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # a connection that has just been closed
            if found := re.match(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{name}")):
                inodes.add(found.group(1))
    addresses = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        with open(f"/proc/net/{table}", encoding="utf8") as file:
            for fields in map(str.split, list(file)[1:]):
                if fields[9] in inodes and (fields[3] == "0A" or table.startswith("udp")):
                    addresses.append((table, fields[1]))
    return addresses


def test_only_loopback_listens():
    server = Server("--device", "cpu", "-tp", "2")
    equal(listening_addresses(server.process.pid), [("tcp", f"0100007F:{server.port:04X}")])
    for body in ({"prompt": "a", "model": "x"}, {"prompt": [10**6]}, {"prompt": "a" * 10**6}):
        status, error = server.call("POST", "/v1/completions", body)
        assert status in (400, 404)
        text = json.dumps(error)
        assert not re.search(r"/(tmp|dev|proc|usr|home|work)/|0x[0-9a-f]{6,}|shm", text), text
    equal(server.stop(), 0)


def test_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        print("test_ipv6 is skipped: this machine has no IPv6")
        return
    process = serve(sys.argv[2], "--host", "::1", "--port", "0", stderr=subprocess.PIPE, text=True)
    line = process.stderr.readline()
    assert re.search(r" http://\[::1\]:\d+$", line.strip()), line
    process.kill()
    process.wait()


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="utf8") as file:
        return [int(child) for child in file.read().split()]


def test_an_engine_that_fails():
    """Whole requests get status 500, streams an event with the error, and the exit status is 1."""
    server = Server("--device", "cpu", "-tp", "2", "--max-num-seqs", "4")
    begun = threading.Event()

    def stream():
        connection = server.connect()
        connection.request("POST", "/v1/completions", json.dumps(dict(LONG, stream=True)))
        response = connection.getresponse()
        text = response.read(10)
        begun.set()
        return response.status, (text + response.read()).decode()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        streamed = pool.submit(stream)
        begun.wait(60)
        worker, = children(server.process.pid)
        os.kill(worker, signal.SIGSTOP)  # so that no answer ends before the worker does
        whole = [pool.submit(server.call, "POST", "/v1/completions", LONG) for _ in range(6)]  # some of them wait
        while server.call("GET", "/load")[1]["server_load"] < 7:
            time.sleep(0.01)
        os.kill(worker, signal.SIGKILL)
        for answer in whole:
            status, error = answer.result(60)
            equal((status, error["error"]["type"]), (500, "server_error"))
        status, text = streamed.result(60)
    events = [event for event in text.split("\n\n") if event]
    equal(status, 200)
    equal(json.loads(events[-1].removeprefix("data: "))["error"]["type"], "server_error")
    equal("[DONE]" in text, False)
    equal(server.process.wait(60), 1)
    log = server.process.stderr.read()
    assert re.search(r"^error: .*rank 1", log, re.M), log
    equal(len(re.findall(r" end=error$", log, re.M)), 7)


def test_requests_that_a_shutdown_cuts_off():
    """They get status 503, as new requests do, and a stream that has begun gets an event with the same error."""
    server = Server("--shutdown-timeout", "0.3")
    stream = server.connect()
    stream.request("POST", "/v1/completions", json.dumps(dict(LONG, stream=True, n=64)))
    streamed = stream.getresponse()
    streamed.read(10)
    whole = server.connect()
    whole.request("POST", "/v1/completions", json.dumps(dict(LONG, n=64)))
    while server.call("GET", "/load")[1]["server_load"] < 2:
        time.sleep(0.01)
    server.process.send_signal(signal.SIGTERM)
    answer = whole.getresponse()
    error = json.loads(answer.read())["error"]
    equal((answer.status, answer.getheader("Retry-After"), error["code"]), (503, "1", "shutting_down"))
    events = [event for event in streamed.read().decode().split("\n\n") if event]
    equal(json.loads(events[-1].removeprefix("data: ")), {"error": error})
    equal(server.process.wait(60), 0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        for test in (test_access_log, test_a_log_that_cannot_be_written, test_unix_socket, test_keys, test_cors, test_vllm_options,
                     test_models_while_loading, test_defaults_of_requests, test_chat_template,
                     test_only_loopback_listens, test_ipv6, test_an_engine_that_fails,
                     test_requests_that_a_shutdown_cuts_off):
            test(folder) if test.__code__.co_argcount else test()
            print(test.__name__, "passed", flush=True)


if __name__ == "__main__":
    main()
