#!/usr/bin/env python3
"""access_test.py NANOVLLM MODEL: what the server refuses to strangers: other names, pages of other sites, and more than a share."""
import http.client
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time

from operating_test import ROUTES, UnixServer, raw, run
from serve_test import KEY, Server, equal, serve


def status(server, method, route, headers=None, body=None):
    """The status and the text of the response to exactly these headers, which may announce more than the body."""
    connection = server.connect()
    connection.putrequest(method, route, skip_host=True, skip_accept_encoding=True)
    for name, value in {"Host": "localhost", **(headers or {})}.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


def test_hosts(folder):
    """DNS rebinding: the name of another site that resolves to 127.0.0.1."""
    server = Server("--api-key", KEY)
    for method, route in [("GET", "/"), ("GET", "/health"), ("HEAD", "/"), ("GET", "/nowhere"), ("OPTIONS", "/")] + ROUTES:
        for host in ("evil.example", f"evil.example:{server.port}", "localhost.evil.example", "127.0.0.1.evil.example"):
            code, text = status(server, method, route, {"Host": host, "Authorization": "Bearer " + KEY, "Content-Length": "999"})
            equal((method, route, host, code), (method, route, host, 403))
            if method != "HEAD":
                error = json.loads(text)["error"]
                equal(("--allowed-hosts" in error["message"], error["type"]), (True, "permission_error"))
    for host in ("localhost", "LOCALHOST.:1", f"127.0.0.1:{server.port}", "127.9.9.9", "[::1]:8000", "a.localhost"):
        equal((host, status(server, "GET", "/health", {"Host": host})[0]), (host, 200))
    equal(raw(server, b"GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n"), b"HTTP/1.1 403 Forbidden")
    equal(raw(server, b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n"), b"HTTP/1.1 200 OK")
    equal(raw(server, b"GET /health HTTP/1.0\r\n\r\n"), b"HTTP/1.1 200 OK")
    equal(server.stop(), 0)
    for options, allowed, refused in (
            (["--allowed-hosts", "a.b,c.d", "--allowed-hosts", '["e.f"]'], ["a.b:80", "c.d", "E.F", "localhost"], ["g.h", "10.0.0.1"]),
            (["--allowed-hosts", "*"], ["a.b", "10.0.0.1"], []), (["--host", "0.0.0.0"], ["a.b", "10.0.0.1"], []),
            (["--host", "0.0.0.0", "--allowed-hosts", "a.b"], ["a.b", "10.0.0.1", "localhost"], ["c.d"])):
        server = Server(*options)
        for hosts, code in ((allowed, 200), (refused, 403)):
            for host in hosts:
                equal((host, status(server, "GET", "/health", {"Host": host})[0]), (host, code))
        equal(server.stop(), 0)
    server = UnixServer(os.path.join(folder, "socket"))
    equal(status(server, "GET", "/health", {"Host": "any.name"})[0], 200)
    equal(server.stop(), 0)
    server = UnixServer(os.path.join(folder, "socket"), "--allowed-hosts", "a.b")
    equal(status(server, "GET", "/health", {"Host": "any.name"})[0], 403)
    equal(server.stop(), 0)


def test_pages_of_other_sites():
    """They get nothing from any route but / and /health, with a key and without, and their bodies are not waited for."""
    body = json.dumps({"prompt": "Once", "max_tokens": 2})
    for options, headers in ([], {}), (["--api-key", KEY], {"Authorization": "Bearer " + KEY}):
        server = Server(*options)
        own = f"127.0.0.1:{server.port}"
        for origin in ("http://evil.example", "https://evil.example", "null", "chrome-extension://abc", "http://localhost.evil"):
            for method, route in ROUTES + [("OPTIONS", "/v1/completions"), ("GET", "/nowhere"), ("PUT", "/v1/models")]:
                code, text = status(server, method, route, {**headers, "Origin": origin, "Content-Length": "1000000"})
                equal((origin, route, code, "--allowed-origins" in text), (origin, route, 403, True))
            for route in ("/", "/health"):
                equal(status(server, "GET", route, {"Origin": origin})[0], 200)
        plain = {"Content-Type": "text/plain", "Content-Length": str(len(body)), **headers}
        for origin in (f"http://{own}", "http://localhost:3000", "app://obsidian.md", "vscode-webview://1a"):
            page = dict(plain, Origin=origin, Host=own)
            equal((origin, status(server, "POST", "/v1/completions", page, body.encode())[0]), (origin, 415))
            page["Content-Type"] = "application/json; charset=utf-8"
            equal((origin, status(server, "POST", "/v1/completions", page, body.encode())[0]), (origin, 200))
        equal(status(server, "POST", "/v1/completions", plain, body.encode())[0], 200)  # no page
        equal(server.stop(), 0)
    server = Server("--allowed-origins", "null", "--allowed-origins", "https://a.b")
    for origin, code in (("null", 200), ("https://a.b", 200), ("https://c.d", 403)):
        equal((origin, status(server, "GET", "/v1/models", {"Origin": origin})[0]), (origin, code))
    equal(server.stop(), 0)


def test_bodies_of_others(folder):
    """Neither a client without a key nor one with a key can take the room for the bodies of all."""
    server = UnixServer(os.path.join(folder, "socket"), "--api-key", "a", "--api-key", "b", "--allowed-origins", "*")
    length = {"Content-Length": str(32 << 20)}
    asking = {"Origin": "http://a.b", "Access-Control-Request-Method": "POST"}
    for method, route, headers in [("GET", "/", {}), ("GET", "/health", {}), ("HEAD", "/health", {}),
                                   ("OPTIONS", "/v1/completions", asking), ("GET", "/v1/models", {"x-api-key": "a"}),
                                   ("GET", "/v1/models/" + os.path.basename(sys.argv[2]), {"x-api-key": "a"}),
                                   ("GET", "/version", {"x-api-key": "a"}), ("GET", "/load", {"x-api-key": "a"}),
                                   ("GET", "/metrics", {"x-api-key": "a"})]:
        for body in (length, {"Transfer-Encoding": "chunked"}, dict(length, Expect="100-continue")):
            code = status(server, method, route, {**headers, **body})[0]
            equal((method, route, code in (200, 404)), (method, route, True))  # and nobody waits for the body
    body = json.dumps({"prompt": "Once", "max_tokens": 2})

    large = [server.connect() for _ in range(4)]
    for connection in large:  # four bodies that are complete but for a byte
        connection.putrequest("POST", "/v1/completions")
        for name, value in {**length, "x-api-key": "a"}.items():
            connection.putheader(name, value)
        connection.endheaders(b"1" * ((32 << 20) - 1))
    # This question announces a body and sends none of it, so that it takes no room from the last of the four.
    question = b"POST /tokenize HTTP/1.1\r\nHost: a\r\nx-api-key: a\r\nContent-Length: 30\r\nExpect: 100-continue\r\n\r\n"
    while raw(server, question) == b"HTTP/1.1 100 Continue":  # until all four have arrived
        equal(select.select([connection.sock for connection in large], [], [], 0.01)[0], [])
    equal(raw(server, question), b"HTTP/1.1 503 Service Unavailable")
    for _ in range(15):
        equal(server.call("POST", "/v1/completions", body, key="b")[0], 200)
    for connection in large:
        connection.send(b"1")
        equal(connection.getresponse().status, 400)
        connection.close()
    equal(server.call("POST", "/v1/completions", body, key="a")[0], 200)
    equal(server.stop(), 0)


def limit_files(count):
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


def test_few_files():
    """Connections leave the files that loading needs, as many are possible as the log says, and there is an error otherwise."""
    status_of, error = run(sys.argv[2], "--port", "0", preexec_fn=limit_files(20))
    equal((status_of, error.count("\n"), "ulimit" in error), (2, 1, True))
    process = serve(sys.argv[2], "--port", "0", stderr=subprocess.PIPE, text=True, preexec_fn=limit_files(64))
    port = int(re.search(r":(\d+)$", process.stderr.readline().strip()).group(1))

    def connect():
        return http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def health(connection):
        connection.request("GET", "/health")
        response = connection.getresponse()
        response.read()
        return response.status

    idle = [connect() for _ in range(100)]
    for connection in idle:  # while the model is being loaded
        connection.connect()
    count = int(re.search(r"^info: up to (\d+) connections$", process.stderr.readline().strip()).group(1))
    assert re.search(r" is ready$", process.stderr.readline().strip())
    for connection in idle:
        connection.close()
    assert 8 <= count < 64, count
    connections = [connect() for _ in range(count)]
    equal([health(connection) for connection in connections], [200] * count)
    waiting = connect()
    waiting.request("GET", "/health")
    connections.pop().close()
    equal(waiting.getresponse().status, 200)
    process.send_signal(signal.SIGTERM)
    equal(process.wait(60), 0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        for test in (test_hosts, test_pages_of_other_sites, test_bodies_of_others, test_few_files):
            test(folder) if test.__code__.co_argcount else test()
            print(test.__name__, "passed", flush=True)


main()
