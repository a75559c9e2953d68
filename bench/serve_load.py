#!/usr/bin/env python3
"""Measures what the server itself costs while many clients stream and many more are connected.
serve_load.py [--binary build/release/nanovllm] [--model FOLDER] [--streams 2000] [--idle 10000] [--minutes 1] [--out FILE.json]

Without --model the engine costs almost nothing: it runs a model of one layer with random weights, whose 94 tokens are printable
characters. The script starts the server, opens the idle connections, which ask for /health once a minute, and runs
`nanovllm bench serve` again and again. It prints these figures, and ends with status 1 if a request or a connection was lost:
events_per_second: events that the clients have received, by the clock.
us_per_event, events_per_io_second: the processor time of the server's I/O thread for one event, and how many events it would
send in a second of its own, whatever else the machine does.
idle_kb, stream_kb: memory of the process for each idle connection, and for each connection while all of them are open.
health_ms: the longest and the 99th percentile of the times in which a new connection got an answer of /health.
rss_mb: memory of the process, from the beginning of the first run to the end of the last one."""
import argparse
import glob
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

from measuring import write

HERE = os.path.dirname(os.path.abspath(__file__))
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
TICKS = os.sysconf("SC_CLK_TCK")


def mock_model(folder):
    """tiny-tales' tokenizer with a model that costs almost nothing."""
    source = os.path.join(HERE, "../models/tiny-tales")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(source, name), folder)
    with open(os.path.join(source, "config.json"), encoding="utf8") as file:
        config = json.load(file)
    config.update(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
                  head_dim=32, vocab_size=94, eos_token_id=0, bos_token_id=0, pad_token_id=0)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf8") as file:
        json.dump(config, file)
    return folder


class Server:
    def __init__(self, binary, model, options):
        self.process = subprocess.Popen([binary, "serve", model, "--port", "0", *options], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if "listening on" in line:
                self.port = int(line.strip().rsplit(":", 1)[1])
            if "is ready" in line:
                break
        else:
            sys.exit("the server has not started")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def memory_kb(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf8") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

    def seconds(self):
        """Processor time of the I/O thread, and of all others: the engine's, and those that read JSON and tokenize."""
        times = {"io": 0.0, "others": 0.0}
        for path in glob.glob(f"/proc/{self.process.pid}/task/*/stat"):
            with open(path, encoding="utf8") as file:
                name, rest = file.read().split("(", 1)[1].rsplit(")", 1)
            fields = rest.split()
            times["io" if name == "io" else "others"] += (int(fields[11]) + int(fields[12])) / TICKS
        return times


class Idle:
    """Connections that ask for /health once a minute; the server closes them after 75 s without a request."""

    def __init__(self, server, count):
        self.sockets = [server.connect() for _ in range(count)]
        self.lost = 0
        self.round()
        threading.Thread(target=self.keep, daemon=True).start()

    def round(self, seconds=0):
        group = 200
        for at in range(0, len(self.sockets), group):
            begin = time.monotonic()
            for act in (lambda s: s.sendall(HEALTH) is None, lambda s: s.recv(4096).startswith(b"HTTP/1.1 200")):
                for connection in self.sockets[at:at + group]:
                    try:
                        self.lost += not act(connection)
                    except OSError:
                        self.lost += 1
            time.sleep(max(seconds * group / len(self.sockets) - (time.monotonic() - begin), 0))

    def keep(self):
        while self.sockets:
            self.round(40)


def poll_health(server, times, stop):
    while not stop.wait(0.05):
        begin = time.monotonic()
        with server.connect() as connection:
            connection.sendall(HEALTH)
            connection.recv(4096)
        times.append(1000 * (time.monotonic() - begin))


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--binary", default=os.path.join(HERE, "../build/release/nanovllm"))
    a.add_argument("--model", help="default: a model that costs almost nothing")
    a.add_argument("--streams", type=int, default=2000)
    a.add_argument("--idle", type=int, default=10000)
    a.add_argument("--minutes", type=float, default=1)
    a.add_argument("--input-len", type=int, default=16)
    a.add_argument("--output-len", type=int, default=400)
    a.add_argument("--out")
    o = a.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory() as folder:
        blocks = o.streams * ((o.input_len + o.output_len - 1) // 64 + 1) + 64
        options = ["--max-num-seqs", str(o.streams), "--num-gpu-blocks-override", str(blocks)]
        if not o.model:
            options += ["--load-format", "dummy", "--threads", "1", "--max-num-batched-tokens", "8192"]
        server = Server(o.binary, o.model or mock_model(folder), options)
        result = measure(server, o)
        server.process.terminate()
        result["exit_status"] = server.process.wait(60)
    print(json.dumps(result, indent=1))
    write(result, o.out)
    sys.exit(bool(result["lost_requests"] or result["lost_connections"] or result["exit_status"]))


def measure(server, o):
    def run(streams, prompts):
        done = subprocess.run([o.binary, "bench", "serve", "--base-url", f"http://127.0.0.1:{server.port}", "--random-input-len",
                               str(o.input_len), "--random-output-len", str(o.output_len), "--vocab-size", "94",
                               "--max-concurrency", str(streams), "--num-prompts", str(prompts), "--json"],
                              capture_output=True, text=True, check=False)
        sys.stderr.write(done.stderr)
        return json.loads(done.stdout)

    run(min(64, o.streams), o.streams + 128)  # touches every block of the KV cache once
    empty = server.memory_kb()
    idle = Idle(server, o.idle)
    with_idle = server.memory_kb()
    health, stop, memory = [], threading.Event(), []
    threading.Thread(target=poll_health, args=(server, health, stop), daemon=True).start()

    def sample():
        while not stop.wait(1):
            memory.append(server.memory_kb())

    threading.Thread(target=sample, daemon=True).start()
    before, begin, runs = server.seconds(), time.monotonic(), []
    while not runs or time.monotonic() - begin < 60 * o.minutes:
        runs.append(run(o.streams, 2 * o.streams))
    after = server.seconds()
    stop.set()
    events, seconds = sum(r["num_events"] for r in runs), sum(r["duration"] for r in runs)
    spent = {name: after[name] - before[name] for name in after}
    health.sort()
    return {
        "streams": o.streams, "idle": o.idle, "runs": len(runs), "seconds": round(time.monotonic() - begin, 1),
        "lost_requests": sum(r["failed"] for r in runs), "lost_connections": idle.lost,
        "first_error": next((r["first_error"] for r in runs if r["failed"]), None),
        "events": events, "events_per_second": round(events / seconds),
        "seconds_of_threads": {name: round(value, 2) for name, value in spent.items()},
        "us_per_event": round(1e6 * spent["io"] / events, 2),
        "events_per_io_second": round(events / spent["io"]),
        "idle_kb": round((with_idle - empty) / max(o.idle, 1), 2),
        "stream_kb": round((max(memory) - empty) / (o.idle + o.streams), 2),
        "health_ms": {"max": round(health[-1], 1), "p99": round(health[len(health) * 99 // 100], 1), "count": len(health)},
        "median_itl_ms": runs[-1]["median_itl_ms"], "p99_itl_ms": runs[-1]["p99_itl_ms"],
        "rss_mb": [round(kb / 1024, 1) for kb in memory[::max(len(memory) // 20, 1)]],
    }


if __name__ == "__main__":
    main()
