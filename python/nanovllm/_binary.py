"""The command `nanovllm`: the binary of this package, in place of Python."""

import os
import sys

BINARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "nanovllm")


def main() -> None:
    os.execv(BINARY, ["nanovllm", *sys.argv[1:]])
