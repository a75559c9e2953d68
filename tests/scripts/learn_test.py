#!/usr/bin/env python3
"""Runs the commands of docs/learn.md, and checks that the pictures they draw are those in docs/images.
learn_test.py SOURCE_DIR BINARY [--write]

What a picture shows of the times may differ. With --write it replaces the pictures."""
import os
import re
import shutil
import subprocess
import sys
import tempfile


def without_times(svg):
    return [line for line in svg.splitlines() if 'class="time' not in line]


def main():
    root, binary = map(os.path.abspath, sys.argv[1:3])
    images = os.path.join(root, "docs/images")
    with open(os.path.join(root, "docs/learn.md"), encoding="utf8") as file:
        blocks = re.findall(r"```sh\n(.*?)```", file.read(), re.S)
    failures, pictures = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("models", "scripts"):
            os.symlink(os.path.join(root, name), os.path.join(folder, name))
        for block in blocks:
            subprocess.run(["bash", "-euo", "pipefail", "-c", block.replace("build/release/nanovllm", binary)], cwd=folder,
                           stdout=subprocess.DEVNULL, check=True, timeout=300)
        for name in sorted(os.listdir(folder)):
            if not name.endswith(".svg"):
                continue
            drawn, kept = os.path.join(folder, name), os.path.join(images, name)
            pictures.append(name)
            if "--write" in sys.argv:
                shutil.copy(drawn, kept)
                continue
            with open(drawn, encoding="utf8") as one, open(kept, encoding="utf8") as two:
                if without_times(one.read()) != without_times(two.read()):
                    failures.append(f"docs/images/{name} is not what the commands of docs/learn.md draw; "
                                    "tests/scripts/learn_test.py --write draws it")
    if len(pictures) != 3:
        failures.append(f"docs/learn.md: expected three pictures, found {pictures}")
    sys.exit("\n".join(failures) or None)


if __name__ == "__main__":
    main()
