"""The command `nanovllm`: replaces the Python process by the binary of this package."""

import os
import sys

BINARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "nanovllm")


def main() -> None:
    os.execv(BINARY, ["nanovllm", *sys.argv[1:]])
