#!/usr/bin/env python3
"""Shows how the GPU's time is spent. Runs a command and prints three times for each kernel of the second half of the run:
`whole` is how long the kernel runs, `not overlapped` the part of this after the end of all earlier kernels (kernels overlap),
and `gap before` how long nothing ran before it. Needs CUPTI.
kernel_times.py [--graphs] -- COMMAND...
--graphs: instead of the second half, use 20 decode steps that are graphs; also print how long such a step takes."""
import collections
import glob
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    args = sys.argv[1:]
    if "--" not in args:
        sys.exit(__doc__)
    options, command = args[:args.index("--")], args[args.index("--") + 1:]
    cuda = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    if not os.path.exists("/proc/driver/nvidia/version"):
        sys.exit("kernel_times.py needs an NVIDIA GPU; this machine has no driver")
    if not os.path.exists(cuda + "/extras/CUPTI"):
        sys.exit(f"kernel_times.py needs CUPTI; {cuda}/extras/CUPTI does not exist (CUDA_HOME names the folder of CUDA)")
    with tempfile.TemporaryDirectory() as folder:
        library, times = folder + "/kernel_times.so", folder + "/times"
        libs = [f"-L{cuda}/{x}" for x in ("lib", "lib64", "extras/CUPTI/lib64")]
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", f"-I{cuda}/include", f"-I{cuda}/extras/CUPTI/include",
                        HERE + "/kernel_times.c", "-o", library, *libs, "-lcupti"], check=True)
        path = ":".join([f"{cuda}/lib", f"{cuda}/lib64", f"{cuda}/extras/CUPTI/lib64",
                         os.environ.get("LD_LIBRARY_PATH", "")])
        subprocess.run(command, check=True, env=dict(os.environ, CUDA_INJECTION64_PATH=library, KERNEL_TIMES=times,
                                                     LD_LIBRARY_PATH=path))
        kernels = []
        # With several ranks, the one that ran the most kernels.
        with open(max(glob.glob(times + ".*"), key=os.path.getsize), encoding="utf8") as file:
            for line in file:
                begin, end, blocks, graph, name = line.rstrip("\n").split(" ", 4)
                kernels.append((int(begin), int(end), int(blocks), name, int(graph)))
    kernels.sort()
    if "--graphs" in options:
        starts = [i for i, k in enumerate(kernels) if "begin_step" in k[3]] + [len(kernels)]
        steps = [kernels[a:b] for a, b in zip(starts, starts[1:])]
        steps = [step for step in steps if any(k[4] for k in step)]
        if not steps:
            sys.exit("the command ran no decode step as a graph")
        steps = steps[len(steps) // 2:][:20]
        times = [max(k[1] for k in step) - step[0][0] for step in steps]
        print(f"median of {len(steps)} steps: {statistics.median(times) / 1e3:.1f} us from the start of the first kernel")
        kernels = sum(steps, [])
    else:
        kernels = kernels[len(kernels) // 2:]
    names = subprocess.run(["c++filt"], input="\n".join(k[3] for k in kernels), capture_output=True, text=True,
                           check=True).stdout.split("\n")
    rows = collections.defaultdict(lambda: [0, 0, 0, 0])
    last = kernels[0][0]
    for (begin, end, blocks, _, _), name in zip(kernels, names):
        name = name.replace("(anonymous namespace)::", "").replace("nanovllm::cuda::", "").removeprefix("void ")
        row = rows[name.rsplit("(", 1)[0][:70], blocks]
        row[0] += 1
        row[1] += end - begin
        row[2] += max(0, end - max(begin, last))
        row[3] += max(0, begin - last)
        last = max(last, end)
    total = last - kernels[0][0]
    print(f"{total / 1e6:.3f} ms of {len(kernels)} kernels\n   share not overlapped   whole     gap before   number  kernel")
    for (name, blocks), (n, whole, alone, gap) in sorted(rows.items(), key=lambda r: -r[1][2]):
        print(f"{alone / total * 100:7.1f}% {alone / n / 1e3:11.2f} us {whole / n / 1e3:8.2f} us {gap / n / 1e3:8.2f} us"
              f" {n:8}  {name}, {blocks} thread blocks")


if __name__ == "__main__":
    main()
