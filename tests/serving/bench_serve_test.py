#!/usr/bin/env python3
"""bench_serve_test.py NANOVLLM MODEL: `nanovllm bench serve` against `nanovllm serve`, and against servers that behave badly."""
import http.server
import json
import subprocess
import sys
import tempfile
import threading

MODEL = sys.argv[2]
COUNTED = ("completed", "failed", "total_input_tokens", "total_output_tokens", "num_events", "num_cut")
KEYS = ["duration", "request_throughput", "output_throughput", "total_token_throughput",
        *(f"{what}_{name}_ms" for name in ("ttft", "tpot", "itl", "e2el") for what in ("mean", "median", "std", "p90", "p99"))]


def bench(port, *options):
    done = subprocess.run([sys.argv[1], "bench", "serve", "--base-url", f"http://127.0.0.1:{port}", "--json", *options],
                          capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def equal(found, expected):
    assert found == expected, f"{found!r} instead of {expected!r}"


def counted(port, *options):
    status, result, error = bench(port, *options)
    equal((status, error), (0, ""))
    assert all(result[key] >= 0 for key in KEYS), result
    return [result[key] for key in COUNTED]


def test_requests(port):
    equal(counted(port, "--random-input-len", "9", "--random-output-len", "5", "--num-prompts", "12", "--vocab-size", "8000",
                  "--max-concurrency", "3", "--request-rate", "1000"), [12, 0, 108, 60, 60, 0])
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for line in ({"prompt": "Once upon a time", "sampling_params": {"max_tokens": 4, "ignore_eos": True}},
                     {"prompt_token_ids": [5, 6, 7], "max_tokens": 3, "ignore_eos": True},
                     {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "logprobs": 1, "ignore_eos": True}):
            file.write(json.dumps(line) + "\n\n")
        file.flush()
        completed, failed, _, output, events, _ = counted(port, "--dataset", file.name)
        equal((completed, failed, output), (3, 0, 12))
        assert events >= 12, events  # a conversation begins with an event of its own
    ids = counted(port, "--num-prompts", "1", "--vocab-size", "8000", "--max-concurrency", "1", "--request-rate", "inf")
    equal(ids[:2], [1, 0])


def test_traces(port):
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 23:59:59.9,40,3\n2023-11-17 00:00:00.1,9999,7\n")
        file.flush()
        equal(counted(port, "--trace", file.name, "--vocab-size", "8000", "--speed", "10"), [2, 0, 40 + 2041, 10, 10, 1])
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:  # without names of the columns
        file.write("2023-11-16 23:59:59.9,40,3\n2023-11-17 00:00:00.1,50,7\n")
        file.flush()
        equal(counted(port, "--trace", file.name, "--vocab-size", "8000", "--speed", "10"), [2, 0, 90, 10, 10, 0])
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write("bad\n")
        file.flush()
        status, _, error = bench(port, "--trace", file.name)
        equal((status, file.name + ": line 1" in error), (2, True))
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for i in range(3):
            file.write(json.dumps({"timestamp": 50 * i, "input_length": 600, "output_length": 2, "hash_ids": [7, 8 + i]}) + "\n")
        file.flush()
        equal(counted(port, "--trace", file.name, "--vocab-size", "8000", "--num-prompts", "2"), [2, 0, 1200, 4, 4, 0])
        status, _, error = bench(port, "--trace", file.name, "--request-rate", "1")
        equal((status, "--speed" in error), (2, True))


def test_errors(port):
    status, result, error = bench(port, "--random-input-len", "3", "--num-prompts", "2", "--vocab-size", "2000000000")
    equal((status, result["failed"], "2 of 2 requests failed; the first one: status 400: " in error), (1, 2, True))
    status, _, error = bench(1)
    equal((status, "127.0.0.1:1 does not answer" in error), (2, True))
    for options in (("--base-url", "https://localhost"), ("--base-url", "localhost:80"), ("--num-prompts", "-1"),
                    ("--dataset", "x", "--trace", "y"), ("--dataset", "/nowhere"), ("--speed", "0"),
                    ("--speed", "2"), ("--random-output-len", "5"), ("--dataset", "x", "--vocab-size", "5")):
        status, _, error = bench(port, *options)
        equal((status, error.count("\n")), (2, 1))


class Other(http.server.BaseHTTPRequestHandler):
    """Another server: spaces in its JSON, no usage, lines that end with CR LF, every second stream is cut off."""
    protocol_version = "HTTP/1.1"
    count = 0

    def do_GET(self):
        self.answer(json.dumps({"data": [{"id": "other"}]}).encode())

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["model"] == "other" and body["stream"]
        Other.count += 1
        if Other.count % 2:
            events = [json.dumps({"choices": [{"text": '"choices" : []'}]})] * 3 + [json.dumps({"choices": []}), "[DONE]"]
            self.answer("".join(f": ping\r\ndata: {event}\r\n\r\n" for event in events).encode())
        else:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"20\r\ndata: {")
            self.close_connection = True

    def log_message(self, *_):
        pass


def test_another_server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        status, result, error = bench(other.server_port, "--random-input-len", "3", "--num-prompts", "4", "--max-concurrency", "1")
        equal((status, *[result[key] for key in COUNTED]), (1, 2, 2, 0, 6, 6, 0))
        assert error.startswith("error: 2 of 4 requests failed; the first one: "), error
        other.shutdown()


def main():
    server = subprocess.Popen([sys.argv[1], "serve", MODEL, "--port", "0", "--max-num-seqs", "16"], stderr=subprocess.PIPE, text=True)
    port = None
    for line in server.stderr:
        if "listening on" in line:
            port = int(line.strip().rsplit(":", 1)[1])
        if "is ready" in line:
            break
    try:
        for test in (test_requests, test_traces, test_errors):
            test(port)
            print(test.__name__, "passed", flush=True)
        test_another_server()
    finally:
        server.terminate()
    equal(server.wait(60), 0)


main()
