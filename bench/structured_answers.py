#!/usr/bin/env python3
"""Checks answers that are drawn under JSON schemas with the package jsonschema, which knows nothing of the engine.
structured_answers.py [--binary build/release/nanovllm] [--answers 20] [--schemas 100] [--max-tokens 400] MODEL ROWS.jsonl[.gz] [OPTION...]

ROWS has lines {"spec": schema, ...}, such as ../shared/goldens/structured/jsonschemabench.jsonl.gz; the first schemas are taken. Every answer, drawn at temperature 1.0, that ends by itself must be valid. Exits with 1 if one is not."""
import argparse
import gzip
import json
import subprocess
import sys
import tempfile

import jsonschema

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--binary", default="build/release/nanovllm")
parser.add_argument("--answers", type=int, default=20)
parser.add_argument("--schemas", type=int, default=100)
parser.add_argument("--max-tokens", type=int, default=400)
parser.add_argument("model")
parser.add_argument("rows")
o, options = parser.parse_known_args()

with (gzip.open if o.rows.endswith(".gz") else open)(o.rows, "rt", encoding="utf8") as file:
    specs = [json.loads(line)["spec"] for line in file if line.strip()]
lines = []
for number, spec in enumerate(specs[: o.schemas]):
    params = {"structured_outputs": {"json": spec}, "temperature": 1.0, "max_tokens": o.max_tokens}
    for seed in range(o.answers):
        lines.append({"prompt": "The answer:", "schema": number, "sampling_params": {**params, "seed": seed}})
with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf8") as file:
    file.writelines(json.dumps({k: v for k, v in line.items() if k != "schema"}) + "\n" for line in lines)
    file.flush()
    done = subprocess.run([o.binary, "generate", o.model, "--prompts-file", file.name, "--json", *options], stdout=subprocess.PIPE, text=True, check=False)
ended = cut = refused = failed = 0
good = set()
for text in done.stdout.splitlines():
    answer = json.loads(text)
    number = lines[answer["index"]]["schema"]
    if answer.get("error"):
        refused += 1
        continue
    good.add(number)
    if answer["finish_reason"] != "stop":
        cut += 1
        continue
    ended += 1
    try:
        checker = jsonschema.validators.validator_for(specs[number])
        checker(specs[number], format_checker=checker.FORMAT_CHECKER).validate(json.loads(answer["text"]))
    except (ValueError, jsonschema.ValidationError) as e:
        failed += 1
        print(f"schema {number}: {str(e).splitlines()[0]}: {answer['text'][:200]}")
print(f"{len(good)} schemas: {ended} answers ended and {cut} were cut, {refused} refused; {ended - failed} passed, {failed} failed")
sys.exit(1 if failed or not ended else 0)
