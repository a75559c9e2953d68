"""Each of examples/*.py does what it says."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, TINY_TALES, goldens

# Ray keeps to itself; the mark tells the processes that it starts.
MARK = f"NANOVLLM_TEST={os.getpid()}"
ENVIRONMENT = {
    **os.environ,
    **dict([MARK.split("=")]),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ADDRESS": "local",  # not the cluster that somebody's `ray start` left behind
}


def start(name: str, *arguments: str | Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / name), *map(str, arguments)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(name: str, *arguments: str | Path) -> str:
    process = start(name, *arguments)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


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


def left_behind() -> list[int]:
    """Processes that a started program started; they have its environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if MARK.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:  # ended, or another user's
            pass
    return found


def read_parts(folder: Path) -> dict[int, dict[str, Any]]:
    rows = [json.loads(line) for part in folder.glob("*.jsonl") for line in part.open()]
    assert len({row["index"] for row in rows}) == len(rows)  # nothing twice
    return {row["index"]: row for row in rows}


def test_ray_batch_goes_on_after_a_kill(tmp_path: Path) -> None:
    pytest.importorskip("ray.data", reason="Ray is not there; pip could not get it")
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "output"
    rows = goldens()
    params = {"temperature": 0, "max_tokens": 64}
    lines = [
        {"prompt_token_ids": row["prompt_token_ids"], "sampling_params": params} for row in rows
    ]
    long = {"max_tokens": 1500, "ignore_eos": True}
    lines += [{"prompt": "", "sampling_params": params}]
    lines += [{"prompt": "Once", "sampling_params": long}] * 8
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines) + "{broken\n")
    options = ["--batch-size", "4", "--cpus", "1", "--engines", "1", "--dtype", "float32"]

    killed = start("ray_batch.py", TINY_TALES, prompts, output, *options)
    try:
        end = time.monotonic() + 300
        while killed.poll() is None and not list(output.glob("*.jsonl")):
            assert time.monotonic() < end, "no answers yet"
            time.sleep(0.01)
        assert killed.poll() is None, killed.communicate()[0]
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate()
    for _ in range(600):  # Ray's processes end after their driver
        if not left_behind():
            break
        time.sleep(0.1)
    assert not left_behind()
    before = {part: part.stat().st_mtime_ns for part in output.glob("*.jsonl")}
    num_before = len(read_parts(output))
    assert 0 < num_before < len(lines)

    told = run("ray_batch.py", TINY_TALES, prompts, output, *options)
    num_left = len(lines) + 1 - num_before
    assert f"{len(lines) + 1} prompts, {num_before} done before, {num_left} to do" in told
    assert f"\n{num_left} done\n" in told
    assert before == {part: part.stat().st_mtime_ns for part in before}
    answers = read_parts(output)
    assert sorted(answers) == list(range(len(lines) + 1))
    for index, row in enumerate(rows):
        assert answers[index]["token_ids"] == row["greedy_token_ids"]
    assert "empty" in answers[len(rows)]["error"]
    assert f"line {len(lines) + 1}:" in answers[len(lines)]["error"]
    assert all(len(answers[len(rows) + i]["token_ids"]) == 1500 for i in range(1, 9))
    assert "0 to do" in run("ray_batch.py", TINY_TALES, prompts, output, *options)
