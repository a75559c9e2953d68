"""Servers for tests with clients that others have written."""
from collections.abc import Iterator

import pytest

from scripted_model import write_model
from served import KEY, ROOT, Server

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


@pytest.fixture(scope="session")
def tales() -> Iterator[str]:
    """A server of models/tiny-tales with the name `tiny`, which needs the key."""
    server = Server(ROOT / "models/tiny-tales", "--served-model-name", "tiny", "--api-key", KEY)
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose answers are SCRIPTS; chat_template_kwargs has the name of one as `script`."""
    folder = tmp_path_factory.mktemp("scripted")
    write_model(folder, SCRIPTS)
    server = Server(folder, "--served-model-name", "scripted", "--api-key", KEY)
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def full() -> Iterator[str]:
    """A server that lets one sequence run and none wait."""
    server = Server(ROOT / "models/tiny-tales", "--max-num-seqs", "1", "--max-queued-requests", "0", "--api-key", KEY)
    yield server.url
    server.stop()
