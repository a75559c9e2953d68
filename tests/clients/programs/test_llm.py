"""Simon Willison's command `llm`: a prompt whole and streamed, a conversation, a completion, tools."""
import json
from collections.abc import Callable
from pathlib import Path

from scripted_model import OTHERWISE
from served import KEY, Server

from .conftest import call

MODELS = """
- model_id: nano
  model_name: served
  api_base: URL/v1
  api_key_name: nano
  supports_tools: true
- model_id: nano-text
  model_name: served
  api_base: URL/v1
  api_key_name: nano
  completion: true
"""
TOOLS = '''
def get_weather(city: str) -> str:
    "The weather in a city."
    return f"rain in {city}"

def get_time(zone: str) -> str:
    "The time in a zone."
    return f"noon in {zone}"
'''


def test_prompts(agent: Callable[..., Server], run: Callable[..., str], work: Path) -> None:
    server = agent([
        ("", "I look it up.\n" + call("get_weather", city="Paris")),
        ("rain in Paris", call("get_time", zone="CET")),
        ("noon in CET", "Bring an umbrella."),
    ])
    folder = work.parent / "home/llm"
    folder.mkdir()
    (folder / "keys.json").write_text(json.dumps({"nano": KEY}))
    (folder / "extra-openai-models.yaml").write_text(MODELS.replace("URL", server.url))

    def llm(*arguments: str) -> str:
        return run("llm", "bin/llm", *arguments, LLM_USER_PATH=str(folder)).strip()
    assert llm("-m", "nano", "Hi", "--no-stream") == OTHERWISE
    assert llm("-m", "nano", "Hi", "-s", "Be brief.") == OTHERWISE
    assert llm("-c", "And?") == OTHERWISE
    assert llm("-m", "nano", "--functions", TOOLS, "Do I need an umbrella?").endswith("Bring an umbrella.")
    llm("-m", "nano-text", "Hi", "-o", "max_tokens", "4")
    assert server.requests() == [("/v1/chat/completions", 200)] * 6 + [("/v1/completions", 200)]
