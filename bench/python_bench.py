"""Compares the Python module with the command: examples/bench.py and `nanovllm bench throughput` on the same sequences.

python bench/python_bench.py [MODEL] [--num-prompts N] [--pairs P] [--in-turn]

Prints both throughputs of each pair and the median of their ratios. On a CPU both run at the same time, with one thread each,
so that other programs on the machine slow down both. On a GPU use --in-turn.
"""

import argparse
import importlib.util
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples/bench.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", nargs="?", default="models/tiny-tales")
    parser.add_argument("--num-prompts", default="24")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--in-turn", action="store_true")
    args = parser.parse_args()
    if importlib.util.find_spec("nanovllm") is None:
        sys.exit("python_bench.py needs the Python package: pip install .")
    threads = [] if args.in_turn else ["--threads", "1"]
    binary = [sys.executable, "-m", "nanovllm", "bench", "throughput", args.model, "--json"]
    binary += ["--num-prompts", args.num_prompts, *threads]
    module = [sys.executable, str(EXAMPLE), args.model, args.num_prompts, *threads[1:]]
    ratios = []
    for pair in range(args.pairs):
        outputs = {}
        running = []
        for command in (binary, module) if pair % 2 else (module, binary):
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            if args.in_turn:
                process.wait()
            running.append((command is binary, process))
        for is_binary, process in running:
            outputs[is_binary] = process.communicate()[0]
        command_speed = json.loads(outputs[True])["output_tokens_per_second"]
        module_speed = float(re.search(r"Throughput: ([\d.]+)", outputs[False]).group(1))
        ratios.append(module_speed / command_speed)
        print(f"{command_speed:.0f} {module_speed:.0f} {ratios[-1]:.3f}", flush=True)
    print(f"median {statistics.median(ratios):.4f}")


if __name__ == "__main__":
    main()
