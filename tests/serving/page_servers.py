"""The servers of page_test.py: the real one, and one that streams what the test chooses."""
import atexit
import http.server
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request


class Server:
    """`nanovllm serve`."""

    def __init__(self, *options):
        command = [sys.argv[1], "serve", sys.argv[2], "--port", "0", "--served-model-name", "tiny-tales", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)  # if the test fails
        self.url = re.search(r"http://\S+", self.process.stderr.readline()).group(0)
        while True:
            try:
                urllib.request.urlopen(self.url + "/health")
                return
            except OSError:
                time.sleep(0.05)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0


class FakeServer(http.server.ThreadingHTTPServer):
    """Serves the real page, and streams the deltas that the test sets. Each delta waits for a release()."""
    daemon_threads = True

    def __init__(self, page, headers):
        super().__init__(("127.0.0.1", 0), FakeHandler)
        self.page, self.page_headers = page, headers
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.bodies, self.client_is_gone = [], threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.answer([])

    def answer(self, deltas, status=200, error=None, ends=True, gated=False):
        self.deltas, self.status, self.error, self.ends = deltas, status, error, ends
        self.gate = threading.Semaphore(0 if gated else 1000)
        self.client_is_gone.clear()

    def release(self, count=1):
        for _ in range(count):
            self.gate.release()


class FakeHandler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def reply(self, status, kind, data, headers=()):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/":
            self.reply(200, "text/html; charset=utf-8", self.server.page, self.server.page_headers)
        else:
            self.reply(200, "application/json", b'{"data": [{"id": "fake"}]}')

    def do_POST(self):
        server = self.server
        server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if server.status != 200:
            return self.reply(server.status, "application/json", json.dumps({"error": {"message": server.error}}).encode())
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            for kind, text in server.deltas:
                while not server.gate.acquire(timeout=0.05):
                    self.event({"choices": []})  # fails when the client is gone
                self.event({"choices": [{"index": 0, "delta": {kind: text}}]})
            if server.error:
                self.event({"error": {"message": server.error}})
            elif server.ends:
                self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
                self.event({"choices": [], "usage": {"completion_tokens": 7}})
                self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            server.client_is_gone.set()

    def event(self, data):
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")
        self.wfile.flush()
