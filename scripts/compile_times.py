#!/usr/bin/env python3
"""Where the time of a build goes.
  compile_times.py measure   builds what `make demo` needs in build/times, without ccache, and prints the times of a cold build, of
                             changes, and of the slowest units; nothing else should run on the machine
  compile_times.py check     fails if a unit of apps/ or nanovllm/server takes more than LIMIT times the processor time of
                             calibration.cpp. The log of build/release tells which may; only these are compiled again.
A unit is up to eight sources that are compiled as one, or a source that is compiled alone."""
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIMIT = 15
CHECKED = ("apps/", "CMakeFiles/nanovllm_server.dir/")
TARGETS = ["nanovllm_cli", "nanovllm_shared"]


def processor_seconds(command, folder):
    """Of a command and its children, which must succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def logged_seconds(build):
    """By object file: how long its last compilation took, by the clock."""
    seconds = {}
    with open(f"{build}/.ninja_log", encoding="utf8") as log:
        for line in log.read().splitlines()[1:]:
            start, end, _, output, _ = line.split("\t")
            seconds[output] = (int(end) - int(start)) / 1000
    return seconds


def commands_of(build):
    """By unit: its file, the words that compile it, and the object file."""
    with open(f"{build}/compile_commands.json", encoding="utf8") as file:
        for entry in json.load(file):
            words = shlex.split(entry["command"])
            at = words.index("-o")
            yield entry["file"], words[:at] + words[at + 2 :], words[at + 1]


def sources_of(unit):
    with open(unit, encoding="utf8") as file:
        included = re.findall(rf'^#include "{ROOT}/(.*\.cpp)"$', file.read(), re.MULTILINE)
    return " ".join(included) or os.path.relpath(unit, ROOT)


def calibration(folder):
    source = f"{ROOT}/scripts/calibration.cpp"
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O2", "-c", source, "-o", f"{folder}/calibration.o"]
    return min(processor_seconds(command, ROOT) for _ in range(3))


def check():
    os.environ["CCACHE_DISABLE"] = "1"
    build = f"{ROOT}/build/release"
    logged = logged_seconds(build)
    slow = []
    with tempfile.TemporaryDirectory() as folder:
        unit = calibration(folder)
        print(f"calibration.cpp: {unit:.1f} s; the limit is {LIMIT} times that, {LIMIT * unit:.1f} s")
        for file, command, output in commands_of(build):
            # By the clock a compilation takes at least its processor time; the half is for a machine whose speed varies.
            if not output.startswith(CHECKED) or logged.get(output, 0) < LIMIT * unit / 2:
                continue
            seconds = min(processor_seconds([*command, "-o", f"{folder}/object.o"], build) for _ in range(2))
            print(f"{seconds:6.1f} s  {sources_of(file)}")
            if seconds > LIMIT * unit:
                slow.append(sources_of(file))
    if slow:
        sys.exit("error: these sources take too long to compile; include less in them, or divide them:\n  " + "\n  ".join(slow))


def build_demo(build, what):
    """Prints the time by the clock and the processor time."""
    start = time.monotonic()
    used = processor_seconds(["cmake", "--build", build, "--target", *TARGETS], ROOT)
    print(f"{what:<40} {time.monotonic() - start:6.0f} s {used:8.0f} s of processor time", flush=True)


def measure():
    build = f"{ROOT}/build/times"
    os.environ["CCACHE_DISABLE"] = "1"
    subprocess.run(["rm", "-rf", build], check=True)
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DNANOVLLM_CUDA=OFF", "-DNANOVLLM_TESTS=OFF", "-DNANOVLLM_BENCH=OFF"]
    subprocess.run(["cmake", "-G", "Ninja", "-S", ROOT, "-B", build, *options], check=True, stdout=subprocess.DEVNULL)
    build_demo(build, "nothing built before")
    files = {output: file for file, _, output in commands_of(build)}
    slowest = sorted(logged_seconds(build).items(), key=lambda item: -item[1])[:12]
    for path in ("nanovllm/base/config.h", "nanovllm/engine/scheduler.cpp", "nanovllm/server/api.cpp", "apps/generate.cpp"):
        os.utime(f"{ROOT}/{path}")
        build_demo(build, f"after a change in {path}")
    print("\nThe slowest, by the clock:")
    for output, seconds in slowest:
        print(f"{seconds:6.1f} s  {sources_of(files[output]) if output in files else output}")


if __name__ == "__main__":
    commands = {"measure": measure, "check": check}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]]()
