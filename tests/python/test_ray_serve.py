"""Runs examples/ray_serve.py on a local Ray: two replicas, which are killed in the middle of requests."""

import concurrent.futures
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, TINY_TALES
from ray_processes import ENVIRONMENT, own_processes

pytest.importorskip("ray.serve")

CHAT = "/v1/chat/completions"
QUESTION = {
    "messages": [{"role": "user", "content": "introduce yourself"}],
    "temperature": 0,
    "max_tokens": 24,
}
LONG = {"messages": QUESTION["messages"], "max_tokens": 1500, "ignore_eos": True, "stream": True}


def engines() -> list[int]:
    return own_processes(b"nanovllm\0serve\0")


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def wait_for(condition: Any, what: str) -> Any:
    for _ in range(1200):
        found = condition()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"never came: {what}")


class Client:
    def __init__(self, port: int) -> None:
        self.port = port

    def open(self, method: str, path: str, body: Any = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, path, body and json.dumps(body))
        return connection.getresponse()

    def ask(self) -> tuple[int, str, str]:
        """The status, the answer, and the replica that gave it."""
        response = self.open("POST", CHAT, QUESTION)
        body = json.loads(response.read())
        content = body["choices"][0]["message"]["content"] if response.status == 200 else str(body)
        return response.status, content, response.headers.get("X-Replica", "")

    def replicas(self) -> set[str]:
        return {self.ask()[2] for _ in range(12)}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [
        "--port",
        port,
        "--cpus",
        1,
        "--min-replicas",
        2,
        "--max-replicas",
        2,
        "--",
        "--dtype",
        "float32",
    ]
    command = [sys.executable, ROOT / "examples/ray_serve.py", TINY_TALES, *options]
    log = Path(f"/tmp/nanovllm_ray_serve_{os.getpid()}.log")
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*map(str, command)], env=ENVIRONMENT, stdout=file, stderr=file, start_new_session=True
        )
    try:
        wait_for(lambda: "serving on" in log.read_text() or process.poll() is not None, "the start")
        assert process.poll() is None, log.read_text()
        found = Client(port)
        wait_for(lambda: len(found.replicas()) == 2, "the second replica")
        yield found
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, log.read_text()
        wait_for(lambda: not own_processes(), "the end of Ray's processes")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.unlink()


def test_two_replicas_share_the_load(client: Client) -> None:
    assert len(engines()) == 2
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: client.ask(), range(64)))
    assert {status for status, _, _ in answers} == {200}
    assert len({content for _, content, _ in answers}) == 1
    counts = [sum(name == replica for _, _, replica in answers) for name in {a[2] for a in answers}]
    assert len(counts) == 2 and min(counts) >= 8, counts


def test_a_stream_and_other_routes(client: Client) -> None:
    whole = client.ask()[1]
    response = client.open("POST", CHAT, {**QUESTION, "stream": True})
    assert response.headers["Content-Type"].startswith("text/event-stream")
    lines = [line.removeprefix(b"data: ") for line in response.read().split(b"\n\n") if line]
    assert lines.pop() == b"[DONE]"
    deltas = [json.loads(line)["choices"][0]["delta"].get("content", "") for line in lines]
    assert "".join(deltas) == whole
    assert client.open("POST", CHAT, {"messages": 5}).status == 400
    assert client.open("GET", "/nowhere").status == 404
    assert b"<html" in client.open("GET", "/").read()


@pytest.mark.parametrize("victim", ["the replica", "its engine"])
def test_a_kill_loses_no_request_that_had_not_begun_to_stream(client: Client, victim: str) -> None:
    expected = client.ask()[1]
    before, replicas = set(engines()), client.replicas()
    streams = [client.open("POST", CHAT, LONG) for _ in range(8)]
    for stream in streams:
        stream.readline()
    end = threading.Event()

    def ask_until_the_end(_: int) -> list[tuple[int, str, str]]:
        answers = []
        while not end.is_set():
            answers.append(client.ask())
        return answers

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        running = [pool.submit(ask_until_the_end, i) for i in range(8)]
        try:
            time.sleep(0.5)
            killed = min(before)
            os.kill(parent(killed) if victim == "the replica" else killed, signal.SIGKILL)
            wait_for(lambda: len(set(engines()) - {killed}) == 2, "another engine")
            wait_for(lambda: len(client.replicas() - replicas) == 1, "answers of the new replica")
        finally:
            end.set()
        answers = [answer for future in running for answer in future.result()]
    assert {(status, content) for status, content, _ in answers} == {(200, expected)}
    ends = [stream.read().rstrip().rpartition(b"data: ")[2] for stream in streams]
    lost = [last for last in ends if last != b"[DONE]"]
    assert all(b"the replica has ended" in last for last in lost), lost
    assert len(lost) < len(streams)


def test_a_client_that_goes_ends_its_request(client: Client) -> None:
    for _ in range(8):
        response = client.open("POST", CHAT, LONG)
        response.readline()
        response.close()
    loads: dict[str, int] = {}

    def is_idle() -> bool:
        for _ in range(8):
            response = client.open("GET", "/load")
            loads[response.headers["X-Replica"]] = json.loads(response.read())["server_load"]
        return len(loads) == 2 and not any(loads.values())

    wait_for(is_idle, f"the end of the requests: {loads}")
