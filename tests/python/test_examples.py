"""Runs the examples that need no other package and checks what their docstrings promise."""

import json
import re
import subprocess
import sys
from pathlib import Path

from conftest import ROOT, TINY_TALES


def run(name: str, *arguments: str | Path) -> str:
    command = [sys.executable, str(ROOT / "examples" / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_example_asks_two_questions() -> None:
    output = run("example.py", TINY_TALES)
    pattern = r"Prompt: '<\|im_start\|>user\\n(.*?)<\|im_end\|>.*\nCompletion: ['\"].{20,}"
    assert re.findall(pattern, output) == [
        "introduce yourself",
        "list all prime numbers within 100",
    ]


def test_bench_gives_a_throughput_over_the_project_s_sequences() -> None:
    rows = (ROOT / "bench/nanovllm_256.jsonl").read_text().splitlines()[:4]
    total = sum(json.loads(row)["sampling_params"]["max_tokens"] for row in rows)
    output = run("bench.py", TINY_TALES, "4")
    assert re.fullmatch(rf"Total: {total}tok, Time: [\d.]+s, Throughput: [\d.]+tok/s\n", output)


def test_stream_answers_and_reads_the_last_turn_from_the_cache() -> None:
    output = run("stream.py", TINY_TALES)
    cached = [int(n) for n in re.findall(r"\[(\d+) of \d+ tokens cached\]", output)]
    assert len(cached) == 2 and cached[0] == 0 and cached[1] > 0
    assert output.count("\n> ") == 2


def test_async_stream_answers_all_prompts_and_cancels() -> None:
    output = run("async_stream.py", TINY_TALES)
    for prompt in ("Once upon a time", "There was a king", "The fox said"):
        assert re.search(rf"^{prompt}.{{20,}}", output, re.MULTILINE), output
    assert output.endswith("\ncancelled; 0 requests run\n")
