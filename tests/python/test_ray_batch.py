"""Runs examples/ray_batch.py and checks what its docstring promises."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, TINY_TALES, goldens
from ray_processes import ENVIRONMENT, own_processes

from nanovllm import LLM


def start(*arguments: str | Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(ROOT / "examples/ray_batch.py"), *map(str, arguments)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(*arguments: str | Path) -> str:
    process = start(*arguments)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def read_parts(folder: Path) -> dict[int, dict[str, Any]]:
    rows = [json.loads(line) for part in folder.glob("*.jsonl") for line in part.open()]
    assert len({row["index"] for row in rows}) == len(rows)  # nothing twice
    return {row["index"]: row for row in rows}


# Lines with characters that end a line for Python but not in JSON, and lines that are not objects.
ODD_LINES = [
    '{"prompt": "Once\u2028upon"}',
    '{"prompt": "Once\u0085upon"}',
    "[1, 2]",
    '"prompt"',
    "7",
    "null",
    "",
    "[" * 100_000,
    '{"prompt": "Once", "sampling_params": [1]}',
    '{"prompt": "Once", "sampling_params": {"top_q": 1}}',
    '{"prompt": "Once", "prompt_token_ids": [1]}',
    '{"messages": 5}',
    '{"text": "Once"}',
    "{}",
    '{"id": "a", "prompt_token_ids": [5, 6], "sampling_params": null}',
    '{"id": "b", "prompt": "Once", "max_tokens": 2, "ignore_eos": true, "index": 70}',
    '{"id": "c", "prompt": ""}',
]
GOOD_LINES = {0, 1, len(ODD_LINES) - 3, len(ODD_LINES) - 2}


def test_ray_batch_gives_each_line_its_answer_or_error(
    llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))  # empty, because unused here
    ray_batch = runpy.run_path(str(ROOT / "examples/ray_batch.py"))
    file = tmp_path / "prompts.jsonl"
    file.write_bytes("".join(line + "\n" for line in ODD_LINES).encode() + b'{"prompt": "\xff"}\r')
    lines = ray_batch["read_lines"](file)
    assert len(lines) == len(ODD_LINES) + 1
    engine = object.__new__(ray_batch["Engine"])
    engine.llm, engine.output, engine.defaults = llm, tmp_path, {"max_tokens": 3}
    engine({"index": range(len(lines)), "line": lines})
    answers = {}
    for line in (tmp_path / f"{0:012}.jsonl").open():
        row = json.loads(line)
        answers[row["index"]] = row
    assert list(answers) == list(range(len(lines)))
    assert {index for index, row in answers.items() if "error" not in row} == GOOD_LINES
    for index in set(answers) - GOOD_LINES:
        assert answers[index]["error"].startswith(f"line {index + 1}: ")
    errors = {str(row.get("error")).partition(": ")[2] for row in answers.values()}
    none = "it has none of the fields messages, prompt, prompt_token_ids; its fields: "
    assert {none + "'text'", none + "none"} <= errors
    assert "it has prompt and prompt_token_ids; it may have only one of them" in errors
    with_id = [answers[len(ODD_LINES) - i] for i in (3, 2, 1)]
    assert [row["id"] for row in with_id] == ["a", "b", "c"]
    assert len(with_id[1]["token_ids"]) == 2 and "empty" in with_id[2]["error"]
    assert answers[0]["prompt_token_ids"] == llm.tokenizer.encode("Once\u2028upon")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert ray_batch["read_lines"](empty) == []


def wait_for(condition: Callable[[], object], process: "subprocess.Popen[str]") -> None:
    """Until the condition is true, while the process runs."""
    end = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, "nothing happens"
        time.sleep(0.01)


def test_ray_batch_continues_after_kills(tmp_path: Path) -> None:
    """First the driver is killed. Then a run with another batch size loses its engine's process."""
    pytest.importorskip("ray.data", reason="Ray is not there; pip could not get it")
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "output"
    rows = goldens()
    params = {"temperature": 0, "max_tokens": 64}
    lines: list[dict[str, Any]] = [
        {"prompt_token_ids": row["prompt_token_ids"], "sampling_params": params} for row in rows
    ]
    long = {"max_tokens": 1500, "ignore_eos": True}
    lines += [{"prompt": "", "sampling_params": params}]
    lines += [{"prompt": "Once", **long, "id": [i] * i} for i in range(8)]
    texts = [json.dumps(line) for line in lines]
    texts[-1] = texts[-1].replace("Once", "Once\u2028\u0085upon")
    prompts.write_text("".join(text + "\n" for text in texts) + "[7]\n")
    options = ["--cpus", "1", "--engines", "1", "--dtype", "float32", "--batch-size"]

    killed = start(TINY_TALES, prompts, output, *options, "4")
    try:
        wait_for(lambda: list(output.glob("*.jsonl")), killed)
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate()
    for _ in range(600):  # Ray's processes end after their driver
        if not own_processes():
            break
        time.sleep(0.1)
    assert not own_processes()
    before = {part: part.stat().st_mtime_ns for part in output.glob("*.jsonl")}
    num_before = len(read_parts(output))
    assert 0 < num_before < len(lines)

    resumed = start(TINY_TALES, prompts, output, *options, "3")
    wait_for(lambda: len(list(output.glob("*.jsonl"))) > len(before), resumed)
    engines = own_processes(b"MapBatches(Engine)")
    assert engines
    for process in engines:
        os.kill(process, signal.SIGKILL)
    told, _ = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, told
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
    for i in range(8):
        answer = answers[len(rows) + 1 + i]
        assert len(answer["token_ids"]) == 1500 and answer["id"] == [i] * i
    assert "0 to do" in run(TINY_TALES, prompts, output, *options, "3")
    assert not list(output.glob("*.tmp"))
