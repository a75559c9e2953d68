#!/usr/bin/env python3
"""Measures NCCL's all-reduce over N GPUs inside a CUDA graph, through PyTorch, to compare with `cuda_bench all_reduce N`.
nccl_all_reduce.py N"""
import os
import statistics
import sys
import time

try:
    import torch
    import torch.distributed as dist
except ImportError:
    sys.exit("nccl_all_reduce.py needs PyTorch: pip install torch")


def rank(index, world):
    torch.cuda.set_device(index)
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29511", rank=index, world_size=world)
    size = 1024
    while size <= 256 << 20:
        x = torch.zeros(size // 2, dtype=torch.bfloat16, device="cuda")
        calls = 100 if size <= 1 << 20 else 10
        for _ in range(3):
            dist.all_reduce(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                dist.all_reduce(x)
        graph.replay()
        times = []
        for _ in range(5):
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            graph.replay()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - begin) / calls)
        if index == 0:
            print(f"NCCL's all_reduce of {size // 1024} KiB over {world} GPUs: {statistics.median(times) * 1e6:.1f} us",
                  flush=True)
        size *= 2 if size < 1 << 20 else 4
    os._exit(0)


if __name__ == "__main__":
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    if torch.cuda.device_count() < n:
        sys.exit(f"nccl_all_reduce.py needs {n} NVIDIA GPUs; PyTorch sees {torch.cuda.device_count()}")
    torch.multiprocessing.spawn(rank, (n,), n)
