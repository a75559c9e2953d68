#!/usr/bin/env python3
"""Measures what it costs to hold answers to JSON schemas.
structured_bench.py [--binary build/release/nanovllm] [--rounds 3] [--num-prompts 256] [--out FILE.json] MODEL [OPTION...]

Runs the same prompts with `nanovllm bench throughput MODEL OPTION...` several times in turn: free, all of them held to one schema,
to 64 different ones, and one of them alone held to a schema. All answers have the same length, because the schemas are those of
lists that do not end before it. Prints the median of the output tokens per second of each, and its share of that of free answers;
then the time to the only token of a single answer, free and held to a schema that was seen before."""
import argparse
import json
import os
import random
import statistics
import tempfile

from measuring import call, gpu, write


def schema(number):
    """A list of objects as agents ask for: names, texts, numbers, a choice."""
    members = {
        f"name_{number}": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 120 + number},
        "role": {"enum": ["admin", "editor", f"guest {number}"]},
        "scores": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 4},
    }
    person = {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}
    return {"type": "array", "items": person, "minItems": 1000000}


def dataset(schemas, num_prompts, prompt_len, answer_len):
    """Lines of a prompts file; schemas[i] holds the answer of the i-th one, or none does."""
    draw = random.Random(0)
    for i in range(num_prompts):
        params = {"temperature": 1.0, "max_tokens": answer_len, "ignore_eos": True, "seed": i}
        if i < len(schemas) and schemas[i]:
            params["structured_outputs"] = {"json": schemas[i]}
        yield {"prompt_token_ids": [draw.randrange(1000, 4000) for _ in range(prompt_len)], "sampling_params": params}


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--binary", default="build/release/nanovllm")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--num-prompts", type=int, default=256)
parser.add_argument("--prompt-len", type=int, default=128)
parser.add_argument("--answer-len", type=int, default=256)
parser.add_argument("--out")
parser.add_argument("model")
o, options = parser.parse_known_args()

count = o.num_prompts
runs = {
    "free": [],
    "one schema": [schema(0)] * count,
    "64 schemas": [schema(i % 64) for i in range(count)],
    "one of them": [schema(0)],
}
one_token = {"free": [], "one schema": []}
speeds, first_ms = ({name: [] for name in names} for names in (runs, one_token))
with tempfile.TemporaryDirectory() as folder:
    for name, schemas in runs.items():
        with open(os.path.join(folder, name), "w", encoding="utf8") as file:
            for line in dataset(schemas, count, o.prompt_len, o.answer_len):
                file.write(json.dumps(line) + "\n")
    for name in one_token:
        with open(os.path.join(folder, "first token, " + name), "w", encoding="utf8") as file:
            file.write(json.dumps(next(dataset(runs[name], 1, o.prompt_len, 1))) + "\n")

    def measure(name):
        args = [o.binary, "bench", "throughput", o.model, "--dataset", os.path.join(folder, name), "--warmup", "--json"]
        return json.loads(call(args + options).strip().split("\n")[-1])

    for _ in range(o.rounds):
        for name in one_token:
            first_ms[name].append(1e3 * measure("first token, " + name)["elapsed_time"])
        for name in runs:
            result = measure(name)
            assert result["output_tokens"] == count * o.answer_len, f"{name}: {result['output_tokens']} tokens"
            speeds[name].append(result["output_tokens_per_second"])
medians = {name: statistics.median(values) for name, values in speeds.items()}
print("| answers | output tokens/s | share |\n|---|---|---|")
for name, speed in medians.items():
    print(f"| {name} | {speed:,.0f} | {speed / medians['free']:.3f} |")
for name, times in first_ms.items():
    print(f"first token, {name}: {statistics.median(times):.3f} ms")
write({"gpu": gpu(), "model": os.path.basename(os.path.normpath(o.model)), "prompts": count, "prompt_len": o.prompt_len, "answer_len": o.answer_len,
       "tokens_per_second": speeds, "first_token_ms": first_ms}, o.out)
