#!/usr/bin/env python3
"""Writes what Jinja2 renders into jinja_cases.jsonl: python3 make_jinja_cases.py

Each line of the file has a template and its context. This program sets `expected` to what Jinja2 makes of them, set up as in
scripts/templates_differential.py, or to null where it raises. A new case is a line without `expected`. Needs
`pip install jinja2==3.1.6`.
"""
import json
import sys
from pathlib import Path

CASES = Path(__file__).resolve().with_name("jinja_cases.jsonl")
sys.path.insert(0, str(CASES.parents[2] / "scripts"))
from templates_differential import make_environment  # noqa: E402


def rendered(source, context):
    try:
        return make_environment().from_string(source).render(**context)
    except Exception:  # whatever Python's operators raise, too
        return None


def main():
    rows = [json.loads(line) for line in CASES.read_text(encoding="utf-8").split("\n") if line]
    for row in rows:
        row["expected"] = rendered(row["template"], row.setdefault("context", {}))
    CASES.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
