"""Answers a file of prompts with Ray Data: one engine for each GPU (or group of cores), on one
machine or on a cluster. When it is started again after a kill, it continues where it stopped.

python examples/ray_batch.py MODEL PROMPTS.jsonl OUTPUT [--batch-size 1024] [--engines N] ...

A line of PROMPTS has one of prompt, prompt_token_ids and messages. It may have sampling_params, or
their fields at the top level; its other fields (`id`, ...) are copied to its result. OUTPUT is a
folder that all machines can access. Each finished batch becomes one file in it, with JSON lines that
have `index` (the line of PROMPTS, from 0) and the fields of LLM.generate or `error`. A later run,
also one with another batch size, leaves out the lines whose results are in OUTPUT.
`cat OUTPUT/*.jsonl` prints all results. docs/scaling.md explains how to run it on a cluster.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import ray

from nanovllm import LLM, SamplingParams


PROMPTS = ("messages", "prompt", "prompt_token_ids")
SAMPLING = {field.name for field in dataclasses.fields(SamplingParams)}
KNOWN = {*PROMPTS, *SAMPLING, "sampling_params"}

# The line's number, the fields to copy, the prompt and its parameters.
Request = tuple[int, dict[str, Any], "str | list[int]", SamplingParams]


class Engine:
    """An actor with one engine, which answers one batch at a time and writes the results."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.llm = LLM(
            args.model,
            tensor_parallel_size=args.tensor_parallel_size,
            threads=args.cpus,
            dtype=args.dtype,
        )
        self.output = Path(args.output)
        self.defaults = {"temperature": args.temperature, "max_tokens": args.max_tokens}

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        rows = [(int(i), bytes(line)) for i, line in zip(batch["index"], batch["line"])]
        path = self.output / f"{rows[0][0]:012}.jsonl"
        unfinished = path.with_suffix(f".{os.getpid()}.tmp")
        unfinished.write_text("".join(json.dumps(row) + "\n" for row in self.answer(rows)))
        unfinished.rename(path)  # so that a file with this name is always complete
        return {"index": batch["index"]}

    def answer(self, rows: list[tuple[int, bytes]]) -> list[dict[str, Any]]:
        answers, requests = {}, []
        for index, line in rows:
            copied: dict[str, Any] = {}
            try:
                row = json.loads(line.decode())
                if not isinstance(row, dict):
                    raise TypeError("it must be a JSON object")
                copied = {name: value for name, value in row.items() if name not in KNOWN}
                requests.append((index, copied, *self.request(row)))
            except (ValueError, TypeError, RecursionError) as error:
                answers[index] = {**copied, "error": f"line {index + 1}: {error}"}
        answers.update(self.generate(requests))
        return [{**answers[index], "index": index} for index, _ in rows]

    def generate(self, requests: list[Request]) -> dict[int, dict[str, Any]]:
        if not requests:
            return {}
        try:
            prompts, params = [r[2] for r in requests], [r[3] for r in requests]
            outputs = self.llm.generate(prompts, params, use_tqdm=False)
            return {r[0]: {**r[1], **output} for r, output in zip(requests, outputs)}
        except (ValueError, TypeError) as error:
            # One bad prompt makes generate refuse all, so search for it in both halves.
            if len(requests) == 1:
                index, copied = requests[0][:2]
                return {index: {**copied, "error": f"line {index + 1}: {error}"}}
            half = len(requests) // 2
            return {**self.generate(requests[:half]), **self.generate(requests[half:])}

    def request(self, row: dict[str, Any]) -> tuple[str | list[int], SamplingParams]:
        kinds = [name for name in PROMPTS if name in row]
        if not kinds:
            found = ", ".join(map(repr, row)) or "none"
            raise ValueError(f"it has none of the fields {', '.join(PROMPTS)}; its fields: {found}")
        if len(kinds) > 1:
            raise ValueError(f"it has {' and '.join(kinds)}; it may have only one of them")
        prompt = row[kinds[0]]
        if kinds[0] == "messages":
            prompt = self.llm.tokenizer.apply_chat_template(prompt, add_generation_prompt=True)
        given = row.get("sampling_params")
        if not isinstance(given, (dict, type(None))):
            raise TypeError("sampling_params must be a JSON object")
        named = {name: value for name, value in row.items() if name in SAMPLING}
        return prompt, SamplingParams(**{**self.defaults, **named, **(given or {})})


def read_lines(path: Path) -> list[bytes]:
    """Only "\\n" ends a line: a text may have other characters that splitlines treats as line ends."""
    lines = path.read_bytes().split(b"\n")
    return lines if lines[-1] else lines[:-1]


def done_before(output: Path) -> set[int]:
    parts = sorted(output.glob("*.jsonl"))
    return {json.loads(line)["index"] for part in parts for line in part.open()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("prompts")
    parser.add_argument("output")
    parser.add_argument("--batch-size", type=int, default=1024, help="prompts per batch")
    parser.add_argument("--engines", type=int, default=0, help="0: as many as fit the cluster")
    parser.add_argument("--tensor-parallel-size", type=int, default=1, help="GPUs per engine")
    parser.add_argument("--cpus", type=int, default=0, help="cores per engine if there is no GPU")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--max-tokens", type=int, default=64)
    args = parser.parse_args()
    args.output = os.path.abspath(args.output)
    if os.path.exists(args.model):  # else it is an id of the Hugging Face hub
        args.model = os.path.abspath(args.model)
    Path(args.output).mkdir(parents=True, exist_ok=True)

    for unfinished in Path(args.output).glob("*.tmp"):  # of a run that was killed
        unfinished.unlink()
    done = done_before(Path(args.output))
    lines = read_lines(Path(args.prompts))
    rows = [{"index": i, "line": line} for i, line in enumerate(lines) if i not in done]
    print(f"{len(lines)} prompts, {len(done)} done before, {len(rows)} to do", flush=True)
    if not rows:
        return

    ray.init(include_dashboard=False)  # RAY_ADDRESS names a cluster
    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0))
    args.cpus = args.cpus or (1 if gpus else int(resources["CPU"]))
    most = gpus // args.tensor_parallel_size if gpus else int(resources["CPU"]) // args.cpus
    answers = ray.data.from_items(rows).map_batches(
        Engine,
        fn_constructor_args=[args],
        batch_size=args.batch_size,
        compute=ray.data.ActorPoolStrategy(size=args.engines or max(most, 1)),
        num_gpus=args.tensor_parallel_size if gpus else 0,
        num_cpus=args.cpus,
    )
    num_done = sum(len(batch["index"]) for batch in answers.iter_batches())
    print(f"{num_done} done")


if __name__ == "__main__":
    main()
