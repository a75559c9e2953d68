#!/usr/bin/env python3
"""Measures how near to the GPU's limits models of any shape run, with random weights in bfloat16.
shape_bench.py [--binary build/release/nanovllm] [--out FILE.json] FOLDER...

Each folder holds a config.json, such as bench/shapes/Qwen3-4B. For decode steps of 1, 64 and 256 sequences with 512 tokens of
prompt it prints the share of the floor and by how many microseconds a layer the step takes longer; for a prefill of 16 prompts
of 1,024 tokens the share. The floor is the least time that the work can take on an H200: the bytes of the weights and of the
KV cache at 4.26 TB/s and, for each matrix product that takes longer by its operations, these at 797 TFLOP/s. Steps of 1 and
64 sequences and the prefill are timed by `nanovllm bench latency`, steps of 256 sequences by kernel_times.py."""
import argparse
import datetime
import json
import os
import re
import sys

from measuring import call, needed_gpu, write

HERE = os.path.dirname(os.path.abspath(__file__))
BYTES_PER_US, FLOPS_PER_US = 4.26e6, 797e6
PROMPT, ANSWER = 512, 129


class Shape:
    def __init__(self, folder):
        with open(os.path.join(folder, "config.json"), encoding="utf8") as file:
            c = json.load(file)
        hidden, inter, heads = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"]
        self.kv_heads = c.get("num_key_value_heads", heads)
        self.head_dim = c.get("head_dim") or hidden // heads
        self.layers, self.heads = c["num_hidden_layers"], heads
        q = heads * self.head_dim
        # The sizes of a layer's matrices, and of the one that gives the logits.
        self.matrices = [hidden * (q + 2 * self.kv_heads * self.head_dim), q * hidden, 2 * hidden * inter, inter * hidden]
        self.lm_head = c["vocab_size"] * hidden

    @staticmethod
    def product_us(size, tokens):
        return max(2 * size / BYTES_PER_US, 2 * size * tokens / FLOPS_PER_US)

    def decode_us(self, batch, keys):
        weights = self.layers * sum(self.product_us(m, batch) for m in self.matrices) + self.product_us(self.lm_head, batch)
        cache = batch * keys * self.layers * 2 * self.kv_heads * self.head_dim * 2
        return weights + cache / BYTES_PER_US

    def prefill_us(self, prompts, length):
        products = self.layers * sum(self.product_us(m, prompts * length) for m in self.matrices)
        attention = self.layers * 2 * self.heads * self.head_dim * length * length * prompts
        return products + self.product_us(self.lm_head, prompts) + attention / FLOPS_PER_US


def measure(binary, folder):
    shape = Shape(folder)

    def latency(batch, length, out, iterations):
        return [binary, "bench", "latency", folder, "--load-format", "dummy", "--device", "cuda", "--batch-size", str(batch),
                "--input-len", str(length), "--output-len", str(out), "--num-iters", str(iterations), "--json"]

    row = {}

    def note(name, us, floor):
        row[name] = {"us": round(us, 1), "share": round(floor / us, 3), "us_a_layer_over": round((us - floor) / shape.layers, 1)}

    for batch in (1, 64):
        step = json.loads(call(latency(batch, PROMPT, ANSWER, 3)))["decode_ms_per_step"] * 1000
        note(f"decode_bs{batch}", step, shape.decode_us(batch, PROMPT + ANSWER / 2))
    answer = 65
    text = call([sys.executable, os.path.join(HERE, "kernel_times.py"), "--graphs", "--", *latency(256, PROMPT, answer, 1)])
    step = float(re.search(r"median of \d+ steps: ([0-9.]+) us", text).group(1))
    note("decode_bs256", step, shape.decode_us(256, PROMPT + answer / 2))
    tokens = json.loads(call(latency(16, 1024, 1, 5)))["prefill_tokens_per_second"]
    note("prefill_16x1024", 16 * 1024 / tokens * 1e6, shape.prefill_us(16, 1024))
    return row


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("folders", nargs="+", metavar="FOLDER")
    a.add_argument("--binary", default=os.path.join(HERE, "../build/release/nanovllm"))
    a.add_argument("--out")
    o = a.parse_args()
    gpu = needed_gpu()
    result = {"gpu": gpu, "date": datetime.date.today().isoformat(), "shapes": {}}
    print(gpu)
    print(f"{'shape':16}" + "".join(f"{x:>20}" for x in ("batch 1", "batch 64", "batch 256", "prefill 16x1024")))
    for folder in o.folders:
        name = os.path.basename(folder.rstrip("/"))
        row = result["shapes"][name] = measure(o.binary, folder)
        print(f"{name:16}" + "".join(f"{r['share']:>9.3f} {r['us_a_layer_over']:>5.1f} us" + "  " for r in row.values()), flush=True)
    write(result, o.out)


if __name__ == "__main__":
    main()
