"""Servers for tests with clients that others have written. The binary is that of the environment variable NANOVLLM, else that of
`make build`."""
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripted_model import write_model

ROOT = Path(__file__).parents[2]
BINARY = os.environ.get("NANOVLLM", str(ROOT / "build/release/nanovllm"))
KEY = "secret"

THOUGHTS = "The user greets me."
WEATHER = '{"name": "get_weather", "arguments": {"city": "Paris", "days": [1, 2]}}'
TIME = '{"name": "get_time", "arguments": {"zone": "CET"}}'
SCRIPTS = {
    "plain": "Hello there!",
    "thoughts": f"<think>\n{THOUGHTS}\n</think>\n\nGood morning.",
    "call": f"<think>\nWeather it is.\n</think>\n\n<tool_call>\n{WEATHER}\n</tool_call>",
    "calls": f"I look it up.\n<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>\n{TIME}\n</tool_call>",
    "unknown": 'So:<tool_call>\n{"name": "erase_disk", "arguments": {}}\n</tool_call>',
    "tags": "if a <tool and b </think or <tool_call>? End <tool_ca",
}


class Server:
    def __init__(self, model: str, *options: str) -> None:
        settings = ["--port", "0", "--dtype", "float32", "--kv-cache-memory-bytes", "64M"]
        self.process = subprocess.Popen([BINARY, "serve", model, *settings, *options], stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        found = re.search(r":(\d+)$", line.strip())
        assert found, line + self.process.stderr.read()
        self.url = f"http://127.0.0.1:{found.group(1)}"
        while True:
            try:
                urllib.request.urlopen(self.url + "/health")
                return
            except urllib.error.HTTPError:
                time.sleep(0.05)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0


@pytest.fixture(scope="session")
def tales() -> Iterator[str]:
    """A server of models/tiny-tales with the name `tiny`, which needs the key."""
    server = Server(str(ROOT / "models/tiny-tales"), "--served-model-name", "tiny", "--api-key", KEY)
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose answers are SCRIPTS; chat_template_kwargs has the name of one as `script`."""
    folder = tmp_path_factory.mktemp("scripted")
    write_model(folder, SCRIPTS)
    server = Server(str(folder), "--served-model-name", "scripted", "--api-key", KEY)
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def full() -> Iterator[str]:
    """A server that lets one sequence run and none wait."""
    server = Server(str(ROOT / "models/tiny-tales"), "--max-num-seqs", "1", "--max-queued-requests", "0", "--api-key", KEY)
    yield server.url
    server.stop()
