import json
from pathlib import Path
from typing import Any

import pytest

from nanovllm import LLM, SamplingParams

ROOT = Path(__file__).parents[2]
TINY_TALES = str(ROOT / "models/tiny-tales")
SMALL: dict[str, Any] = {"dtype": "float32", "kv_cache_memory_bytes": 64 << 20}
GREEDY = SamplingParams(temperature=0, max_tokens=64)


def goldens(name: str = "tiny-tales") -> list[dict[str, Any]]:
    """Rows of tests/goldens, without those with a tie, whose answers may differ."""
    lines = (ROOT / f"tests/goldens/{name}.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if not row.get("tie")]


def golden_prompts(rows: list[dict[str, Any]]) -> list[list[int]]:
    return [row["prompt_token_ids"] for row in rows]


def golden_answers(rows: list[dict[str, Any]]) -> list[list[int]]:
    return [row["greedy_token_ids"] for row in rows]


@pytest.fixture(scope="session")
def llm() -> LLM:
    return LLM(TINY_TALES, **SMALL)
