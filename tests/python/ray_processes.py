"""Settings that isolate a test's Ray, and the processes that it starts."""

import os
from pathlib import Path

MARK = f"NANOVLLM_TEST={os.getpid()}"
ENVIRONMENT = {
    **os.environ,
    **dict([MARK.split("=")]),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ADDRESS": "local",  # not the cluster that somebody's `ray start` left behind
}


def own_processes(name: bytes = b"") -> list[int]:
    """The processes with the mark in their environment, which they inherit, and the name in their command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if MARK.encode() in (process / "environ").read_bytes().split(b"\0"):
                if name in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
        except OSError:  # it has ended, or belongs to another user
            pass
    return found
