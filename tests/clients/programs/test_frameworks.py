"""Frameworks, each with a script of its own in scripts/."""
from collections.abc import Callable
from typing import Any

import pytest

from served import Server

from .conftest import call

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
PATHS = {"openai-agents": [RESPONSES, CHAT], "pydantic-ai": [CHAT, RESPONSES, MESSAGES], "langchain": [CHAT, RESPONSES],
         "litellm": [CHAT, MESSAGES]}
ANSWER = "Bring an umbrella at noon."
TURNS = [
    ("", "<think>\nWeather it is.\n</think>\n\nI look it up.\n" + call("get_weather", city="Paris")),
    ("rain in Paris", "<think>\nAnd now?\n</think>\n\n" + call("get_time", zone="CET")),
    ("noon in CET", ANSWER),
]


@pytest.mark.parametrize("name", PATHS)
def test_a_question_takes_two_tools(name: str, agent: Callable[..., Server], run_script: Callable[..., Any]) -> None:
    """In each API once whole and once streamed."""
    server = agent(TURNS)
    assert run_script(name, server) == {path: [ANSWER, ANSWER] for path in PATHS[name]}
    assert server.requests() == [(path, 200) for path in PATHS[name] for _ in range(2 * len(TURNS))]


def test_instructor(reciter: Callable[..., Server], run_script: Callable[..., Any]) -> None:
    server = reciter('Here:\n```json\n{"name": "Ada", "age": 36}\n```')
    assert run_script("instructor", server) == [{"name": "Ada", "age": 36}] * 2
    assert server.requests() == [(CHAT, 200)] * 2
