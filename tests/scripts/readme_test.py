#!/usr/bin/env python3
"""Checks what README.md and the pages beside it, docs/ and the forms in .github/ say against the tree.
readme_test.py SOURCE_DIR BINARY LIBRARY COMPILER, or readme_test.py SOURCE_DIR --python

- Every file that is named with a folder of the tree, such as scripts/coverage.py, exists.
- Every link to a file, to a heading, or to a name in a file ([`Scheduler::schedule`](path)) has a target.
- The commands of the README's shell blocks run, its C++ block compiles and runs, and with --python its Python block.
  A comment <!-- not run by the test: ... --> before a block excludes it.
- Every test that docs/regressions.md names exists.
- Every `make TARGET` exists, and every `nanovllm COMMAND --option` is known to the binary."""
import os
import re
import subprocess
import sys
import tempfile

FENCE = re.compile(r"(<!-- not run by the test: [^\n]* -->\n)?```(\w+)\n(.*?)```", re.S)
# docs/from-nano-vllm.md names one file of nano-vLLM with its folder, and docs/architecture.md one of the Python package without.
OTHER_FILES = {"models/qwen3.py", "nanovllm/llm.py"}
failures = []


def pages(root):
    for folder in ("", "docs", ".github", ".github/ISSUE_TEMPLATE"):
        for name in sorted(os.listdir(os.path.join(root, folder))):
            if name.endswith((".md", ".yml")):
                path = os.path.join(root, folder, name)
                with open(path, encoding="utf8") as file:
                    yield path, file.read()


def without_code(text):
    return FENCE.sub("", text)


def heading_anchor(heading):
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).strip().lower()).replace(" ", "-")


def check_links(path, text):
    for label, target in re.findall(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)", without_code(text)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        full = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
        if not os.path.exists(full):
            failures.append(f"{path}: no such file: {target}")
        elif os.path.isfile(full) and not full.endswith((".svg", ".png")):
            with open(full, encoding="utf8") as opened:
                content = opened.read()
            # scripts/link_lines.py writes the numbers of lines, and the test scripts.link_lines checks them.
            is_line = re.fullmatch(r"L\d+", anchor)
            if anchor and not is_line and anchor not in map(heading_anchor, re.findall(r"^#+ (.*)$", content, re.M)):
                failures.append(f"{path}: no such heading: {target}")
            if re.fullmatch(r"`[^`]+`", label):
                name = re.findall(r"\w+", label)[-1]  # of A::b or a.b the last one
                if not re.search(rf"\b{name}\b", content) and os.path.basename(full) != label.strip("`"):
                    failures.append(f"{path}: {full} contains no {name}")


def check_files(root, path, text):
    folders = "|".join(re.escape(name) for name in os.listdir(root) if name != "build" and os.path.isdir(f"{root}/{name}"))
    without_targets = re.sub(r"\]\([^)\s]*\)", "]", without_code(text))  # check_links() looks at those
    for name in re.findall(rf"(?<![\w/.-])(?:{folders})/[\w./-]*\w", without_targets):
        if not os.path.exists(os.path.join(root, name)) and name not in OTHER_FILES:
            failures.append(f"{path}: no such file: {name}")


def check_commands(root, binary, path, text):
    with open(os.path.join(root, "Makefile"), encoding="utf8") as file:
        targets = set(re.findall(r"^([a-z -]+):", file.read(), re.M))
    targets = {word for line in targets for word in line.split()}
    # A code span may be broken over lines; what follows `nanovllm` up to an option is the command.
    spans = [re.sub(r"\s+", " ", span) for span in re.findall(r"`([^`]+)`", without_code(text))]
    lines = [line for _, kind, code in FENCE.findall(text) if kind == "sh" for line in code.splitlines()]
    for span in spans + lines:
        for target in re.findall(r"^make ([a-z-]+)", span):
            if target not in targets:
                failures.append(f"{path}: the Makefile has no target {target}: {span}")
        match = re.match(r"(?:\S*/)?nanovllm ((?:bench )?[a-z]+)\b(.*)", span)
        if not match:
            continue
        # nanovllm worker is hidden and has options of its own.
        asked = subprocess.run([binary, *match[1].split(), "--help"], capture_output=True, text=True)
        if asked.returncode:
            failures.append(f"{path}: no command {match[1]}: {span}")
        for option in re.findall(r"(?<=\s)--[a-z][a-z-]+", match[2]):
            if option not in asked.stdout:
                failures.append(f"{path}: nanovllm {match[1]} has no option {option}: {span}")


def check_tests(root):
    with open(os.path.join(root, "docs/regressions.md"), encoding="utf8") as file:
        rows = [line for line in file if line.startswith("| ")]
    sources = []
    for folder, _, files in os.walk(os.path.join(root, "tests")):
        for name in files:
            if name.endswith(".cpp"):
                with open(os.path.join(folder, name), encoding="utf8") as file:
                    sources.append(file.read())
    known = set(re.findall(r"TEST\w*\(\s*(?:\w+),\s*(\w+)\)", "\n".join(sources)))
    for row in rows:
        for name in re.findall(r"\b[A-Z]\w+\.([A-Z]\w+)", row.split("|")[3]):
            if name not in known:
                failures.append(f"docs/regressions.md: no test {name}")


def run(what, command, **more):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, **more)
    if done.returncode:
        failures.append(f"{what}\nends with {done.returncode}: {done.stdout[-1000:]}{done.stderr[-1000:]}")


def run_blocks(root, binary, library, compiler):
    with open(os.path.join(root, "README.md"), encoding="utf8") as file:
        blocks = [(kind, code) for excluded, kind, code in FENCE.findall(file.read()) if not excluded]
    for kind, code in blocks:
        if kind == "sh":
            with tempfile.TemporaryDirectory() as folder:  # for the files that the commands write
                for name in ("models", "examples", "bench"):
                    os.symlink(os.path.join(root, name), os.path.join(folder, name))
                run(code, ["bash", "-euo", "pipefail", "-c", code.replace("build/release/nanovllm", binary)], cwd=folder)
        elif kind == "cpp":
            includes, body = re.fullmatch(r"((?:#include[^\n]*\n|\n)*)(.*)", code, re.S).groups()
            with tempfile.TemporaryDirectory() as folder:
                source, program = os.path.join(folder, "main.cpp"), os.path.join(folder, "main")
                with open(source, "w", encoding="utf8") as file:
                    file.write(f"{includes}\nint main() {{\n{body}}}\n")
                run(code, [compiler, "-std=c++20", "-Wno-unused-value", "-I", root, source, "-o", program, library,
                           f"-Wl,-rpath,{os.path.dirname(library)}"])
                if os.path.exists(program):
                    run(code, [program], cwd=root)
    kinds = {kind for kind, _ in blocks}
    if not {"sh", "cpp", "python"} <= kinds:
        failures.append(f"README.md: expected blocks of sh, cpp and python, found {kinds}")


def run_python(root):
    with open(os.path.join(root, "README.md"), encoding="utf8") as file:
        blocks = [code for excluded, kind, code in FENCE.findall(file.read()) if kind == "python" and not excluded]
    with tempfile.TemporaryDirectory() as folder:  # not in the tree, whose folder python/ has no extension module
        os.symlink(os.path.join(root, "models"), os.path.join(folder, "models"))
        for code in blocks:
            run(code, [sys.executable, "-c", code], cwd=folder)


def main():
    root = os.path.abspath(sys.argv[1])
    if sys.argv[2:] == ["--python"]:
        run_python(root)
    else:
        binary, library, compiler = map(os.path.abspath, sys.argv[2:])
        for path, text in pages(root):
            check_links(path, text)
            check_files(root, path, text)
            check_commands(root, binary, path, text)
        check_tests(root)
        run_blocks(root, binary, library, compiler)
    for failure in failures:
        print(failure)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
