"""A server with the model of an agent, and a way to run a program that reaches nothing else."""
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scripted_model import write_agent, write_model
from served import KEY, ROOT, Server

from .packages import environment

LIMIT = 240  # seconds that a program may run; most need fewer than 5


def call(name: str, **arguments: str) -> str:
    """What the model writes to call a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    """Starts a server with a model that has the name `served`. At the end of the test it must have refused no request."""
    servers = []

    def start(model: Path, *options: str) -> Server:
        servers.append(Server(model, "--served-model-name", "served", "--api-key", KEY, *options))
        return servers[-1]
    yield start
    for server in servers:
        server.stop()
        assert all(status == 200 for _, status in server.requests()), server.log()


@pytest.fixture
def agent(start: Callable[..., Server], tmp_path: Path) -> Callable[[list[tuple[str, str]]], Server]:
    """Starts a server whose model acts in turns, as `write_agent` describes them."""
    def agent(turns: list[tuple[str, str]]) -> Server:
        write_agent(tmp_path / "model", turns)
        return start(tmp_path / "model")
    return agent


@pytest.fixture
def reciter(start: Callable[..., Server], tmp_path: Path) -> Callable[[str], Server]:
    """Starts a server whose model gives one answer to everything."""
    def reciter(answer: str) -> Server:
        write_model(tmp_path / "model", {"plain": answer}, context=65536)
        return start(tmp_path / "model")
    return reciter


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The folder where programs run."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def run(work: Path) -> Callable[..., str]:
    """Runs a program of an environment and returns its standard output."""
    def run(name: str, program: str, *arguments: str, **variables: str) -> str:
        folder = environment(name)
        # The programs get no settings of this machine, and a proxy that does not exist keeps them from other machines.
        variables |= {"PATH": f"{folder}/bin:/usr/bin:/bin", "HOME": str(work.parent / "home"), "LANG": "C.UTF-8",
                      "HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
        done = subprocess.run([folder / program, *arguments], cwd=work, env=variables, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
    return run


@pytest.fixture
def run_script(run: Callable[..., str]) -> Callable[[str, Server], Any]:
    """Runs the script that is named after an environment, with a server, and returns the JSON on its last line."""
    def run_script(name: str, server: Server) -> Any:
        script = ROOT / f"tests/clients/programs/scripts/use_{name.replace('-', '_')}.py"
        return json.loads(run(name, "bin/python", "-I", str(script), server.url, KEY).splitlines()[-1])
    return run_script
