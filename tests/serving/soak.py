#!/usr/bin/env python3
"""Mixed random traffic against `nanovllm serve` in float32.
soak.py NANOVLLM MODEL [--minutes 1] [--clients 24] [--seed N] [--memory-may-grow]

The clients send greedy and sampled requests, whole and streamed, requests that must be refused, and bytes that are no HTTP, and
some of them go before their answer has ended. Every greedy answer must be the prompt's first answer, every bad request must get
its status, and at the end no block of the KV cache may be in use. The memory of the process in the last quarter of the
time must be that of the first quarter. The last line has the figures; the exit status is 1 if something was wrong."""
import argparse
import collections
import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time

WORDS = "Once upon a time there was little girl dog who wanted to play in the garden with her red ball and mother said".split()
BAD = (({"prompt": "a", "temperature": -1}, 400), ({"prompt": "a", "n": 10**9}, 400), ({"prompt": "a" * 70000}, 400),
       ({"prompt": [99999999]}, 400), ({}, 400), ("{", 400), ("[" * 100000, 400), (b"\xff\xfe", 400),
       ({"prompt": "a", "model": "other"}, 404), ({"prompt": "a", "stop": ["x"] * 10000}, 400))


class Soak:
    def __init__(self, options):
        self.process = subprocess.Popen([options.nanovllm, "serve", options.model, "--port", "0", "--dtype", "float32",
                                         "--max-num-seqs", "32", "--num-gpu-blocks-override", "200"], stderr=subprocess.PIPE,
                                        text=True)
        self.port = int(re.search(r":(\d+)$", self.process.stderr.readline().strip()).group(1))
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        self.end = 0  # when the clients stop
        self.lock = threading.Lock()
        self.first, self.counts, self.wrong = {}, collections.Counter(), []

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def get(self, path):
        connection = self.connect()
        connection.request("GET", path)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, data

    def fail(self, what):
        with self.lock:
            self.wrong.append(what)
        print("wrong:", what[:500], flush=True)

    def client(self, number):
        chance = random.Random(number)
        connection = self.connect()
        while time.monotonic() < self.end:
            action = chance.choices((self.answer, self.bad, self.leave, self.garbage), (12, 2, 4, 1))[0]
            try:
                connection = action(chance, connection) or connection
            except Exception as e:  # whatever it is, the other clients go on
                self.fail(f"{action.__name__}: {type(e).__name__}: {e}")
                connection.close()
                connection = self.connect()

    def body(self, chance):
        """A request, and the key under which its answer is known; None: it may be any."""
        prompt = " ".join(WORDS[:chance.randrange(1, 5)] + chance.choices(WORDS[:8], k=chance.randrange(3)))
        body = {"max_tokens": chance.choice((1, 7, 30, 90)), "stream": chance.random() < 0.6}
        if chance.random() < 0.3:
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        greedy = chance.random() < 0.6
        if greedy:
            body["temperature"] = 0
            if chance.random() < 0.3:
                body["presence_penalty"] = 0.5
        else:
            body.update(temperature=chance.choice((0.3, 1, 3)), top_p=chance.choice((0.5, 1)), top_k=chance.choice((0, 5)),
                        n=chance.choice((1, 1, 3)), logprobs=chance.choice((None, 1)) if "prompt" in body else None)
            if chance.random() < 0.5:
                body["seed"] = chance.randrange(4)  # in float32 a seed draws the same tokens in every batch
                greedy = True
        known = json.dumps({k: v for k, v in body.items() if k != "stream"}, sort_keys=True)
        return body, known if greedy else None

    def send(self, connection, body):
        data = body if isinstance(body, (str, bytes)) else json.dumps(body)
        path = "/v1/chat/completions" if isinstance(body, dict) and "messages" in body else "/v1/completions"
        connection.request("POST", path, data, {"Content-Type": "application/json"})

    def answer(self, chance, connection, body=None):
        body, known = (body, None) if body else self.body(chance)
        self.send(connection, body)
        response = connection.getresponse()
        text = response.read()
        if response.status != 200:
            return self.fail(f"status {response.status} for {body}: {text[:200]}")
        choices = collections.defaultdict(lambda: ["", None])
        if body["stream"]:
            events = [line[6:] for line in text.decode().split("\n\n") if line]
            if events.pop() != "[DONE]":
                return self.fail(f"a stream without its end: {text[-200:]}")
            parts = [choice for event in events for choice in json.loads(event)["choices"]]
        else:
            parts = json.loads(text)["choices"]
        for choice in parts:
            message = choice.get("delta") or choice.get("message") or choice
            choices[choice["index"]][0] += message.get("content", message.get("text")) or ""
            choices[choice["index"]][1] = choice["finish_reason"] or choices[choice["index"]][1]
        found = sorted((index, *value) for index, value in choices.items())
        with self.lock:
            self.counts["answers"] += 1
            expected = self.first.setdefault(known, found) if known else found
            self.counts["compared"] += bool(known)
        if found != expected or any(reason not in ("stop", "length") for _, _, reason in found):
            self.fail(f"{body}: {found} instead of {expected}")

    def bad(self, chance, connection):
        body, status = chance.choice(BAD)
        self.send(connection, body)
        response = connection.getresponse()
        text = response.read()
        self.counts["refused"] += 1
        if response.status != status:
            self.fail(f"status {response.status} instead of {status} for {str(body)[:100]}: {text[:200]}")

    def leave(self, chance, connection):
        """The client goes while it waits or reads."""
        body, _ = self.body(chance)
        body.update(max_tokens=600, ignore_eos=True)
        self.send(connection, body)
        time.sleep(chance.choice((0, 0, 0.01, 0.2)))
        if body["stream"] and chance.random() < 0.5:
            connection.getresponse().read(chance.randrange(1, 3000))
        if chance.random() < 0.5:  # the connection is reset
            connection.sock and connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
        self.counts["left"] += 1
        return self.connect()

    def garbage(self, chance, connection):
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as raw:
            raw.sendall(chance.choice((b"\0" * 100, b"GET / HTTP/9.9\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nab",
                                       b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n", chance.randbytes(500) + b"\r\n\r\n")))
        self.counts["garbage"] += 1

    def memory_mb(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf8") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("nanovllm")
    a.add_argument("model")
    a.add_argument("--minutes", type=float, default=1)
    a.add_argument("--clients", type=int, default=24)
    a.add_argument("--seed", type=int, default=0)
    a.add_argument("--memory-may-grow", action="store_true", help="for the sanitizers, which keep freed memory for a while")
    o = a.parse_args()
    soak = Soak(o)
    while soak.get("/health")[0] != 200:
        time.sleep(0.05)
    # Afterwards every block of the KV cache has been used, and the memory must stay as it is.
    for i in range(12):
        soak.answer(random.Random(i), soak.connect(), {"prompt": [(i * 7919 + j) % 8000 for j in range(1200)], "max_tokens": 1,
                                                       "stream": False})
    soak.end = time.monotonic() + 60 * o.minutes
    clients = [threading.Thread(target=soak.client, args=(o.seed * 1000 + i,)) for i in range(o.clients)]
    for client in clients:
        client.start()
    memory, begin = [], time.monotonic()
    while any(client.is_alive() for client in clients) and soak.process.poll() is None:
        time.sleep(min(5, 60 * o.minutes / 20))
        memory.append(soak.memory_mb())
        if sys.stdout.isatty():
            print(f"{time.monotonic() - begin:.0f} s, {dict(soak.counts)}, {memory[-1]:.0f} MB", flush=True)
    if soak.process.poll() is not None:
        soak.fail(f"the server has ended with status {soak.process.returncode}")
    else:
        for _ in range(200):  # requests of clients that went end after the step that computes them
            if json.loads(soak.get("/load")[1])["server_load"] == 0:
                break
            time.sleep(0.05)
        else:
            soak.fail("requests of clients that went are still running")
        status, metrics = soak.get("/metrics")
        usage = re.search(r"^vllm:kv_cache_usage_perc\S* (\S+)$", metrics.decode(), re.M) if status == 200 else None
        if usage and float(usage[1]) != 0:
            soak.fail(f"{usage[0]} at the end")
        soak.counts["kv_cache_usage"] = float(usage[1]) if usage else "no /metrics"
        soak.process.terminate()
        if soak.process.wait(60) != 0:
            soak.fail(f"exit status {soak.process.returncode}")
    quarter = len(memory) // 4
    early, late = max(memory[:quarter + 1]), max(memory[-quarter - 1:])
    if late > 1.1 * early + 16 and not o.memory_may_grow:
        soak.fail(f"the memory has grown from {early:.0f} to {late:.0f} MB")
    print(json.dumps({"seconds": round(time.monotonic() - begin), **soak.counts, "prompts": len(soak.first),
                      "wrong": len(soak.wrong), "memory_mb": [round(mb) for mb in memory[::max(len(memory) // 10, 1)]]}))
    os._exit(bool(soak.wrong))


if __name__ == "__main__":
    main()
