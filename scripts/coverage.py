#!/usr/bin/env python3
"""Prints the line and branch coverage of each folder of nanovllm/, after a run of the tests in a build of the preset `coverage`.
coverage.py BUILD_FOLDER [FOLDER]
FOLDER: also list the lines and branches of this folder of nanovllm/ that no test covers.

Branches that the compiler adds for exceptions are not counted: gcov marks them and gcovr leaves them out. Nor are those of a
line that is only a closing bracket: they belong to destructors. Branches in inlined functions of the standard library count
for its headers. The exit status is 1 if a folder has less branch coverage than BRANCHES requires."""
import json
import os
import subprocess
import sys

BRANCHES = {"front": 90, "engine": 90, "model": 90, "runtime": 90, "text": 90}  # the minimum, in percent
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def folder_of(path):
    parts = os.path.dirname(path).split("/")[1:]
    return "/".join(parts[:2] if parts[:1] == ["ops"] else parts[:1]) or "."


def main():
    build = sys.argv[1]
    command = ["gcovr", "--root", ROOT, "--filter", os.path.join(ROOT, "nanovllm/"), "--exclude", ".*/ops/cuda/",
               "--exclude-throw-branches", "--exclude-unreachable-branches", "--exclude-branches-by-pattern", r"^\s*\}[;)]*\s*$",
               "--gcov-ignore-parse-errors=all", "--merge-mode-functions=merge-use-line-0",
               "-j", str(os.cpu_count()), "--json", build + "/coverage.json", "--json-summary", build + "/summary.json", build]
    subprocess.run(command, check=True)
    with open(build + "/summary.json", encoding="utf8") as file:
        files = json.load(file)["files"]
    counts = {}
    for entry in files:
        total = counts.setdefault(folder_of(entry["filename"]), [0, 0, 0, 0])
        for i, key in enumerate(("line_covered", "line_total", "branch_covered", "branch_total")):
            total[i] += entry[key]
    low = []
    print(f"{'nanovllm/':<12}{'lines':>16}{'branches':>20}")
    for folder, (lines, num_lines, branches, num_branches) in sorted(counts.items()):
        share = 100 * branches / max(1, num_branches)
        print(f"{folder:<12}{lines:>6} of {num_lines:>5} {100 * lines / max(1, num_lines):5.1f}%"
              f"{branches:>6} of {num_branches:>5} {share:5.1f}%")
        if share < BRANCHES.get(folder, 0):
            low.append(f"{folder}: {share:.1f}% of the branches, at least {BRANCHES[folder]}%")
    if len(sys.argv) > 2:
        show_missing(build, sys.argv[2])
    if low:
        sys.exit("\n".join(low))


def show_missing(build, folder):
    with open(build + "/coverage.json", encoding="utf8") as file:
        files = json.load(file)["files"]
    for entry in files:
        if folder_of(entry["file"]) != folder:
            continue
        with open(os.path.join(ROOT, entry["file"]), encoding="utf8") as file:
            text = file.read().splitlines()
        for line in entry["lines"]:
            branches = [branch for branch in line["branches"] if not branch.get("gcovr/excluded")]
            missing = sum(branch["count"] == 0 for branch in branches)
            if missing or line["count"] == 0:
                what = "never" if line["count"] == 0 else f"{missing} of {len(branches)}"
                print(f"{entry['file']}:{line['line_number']}: {what}: {text[line['line_number'] - 1].strip()}")


if __name__ == "__main__":
    main()
