#!/usr/bin/env python3
"""Measures complete steps of the published shapes on a GPU, with random weights in bfloat16 or quantized.
gpu_bench.py [--binary build/release/nanovllm] [--shapes Qwen3-0.6B,Qwen3-8B] [--weights bfloat16,fp8,int4,int8] [--tp N]
             [--decode 1,8,64,256] [--prefill 16x1024,8x4000] [--no-throughput] [--option=--kv-cache-dtype=fp8 ...]
             [--out FILE.json] [--start]

It prints these figures:
decode_bsN_ms: ms of a step of N sequences with 512 tokens of prompt; the time for 257 tokens of answer less that for 1.
prefill_NxL_tok_s: N prompts of L tokens with one token of answer.
bench_256_tok_s: nano-vLLM's 256 sequences; the second of two runs, with the prefix cache dropped between them.
process_start_to_first_token_s: seconds from the start of the process to its first token, with the weights in the page
cache (only with --start, which writes the checkpoint below /tmp)."""
import argparse
import datetime
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time

from measuring import call, needed_gpu, write

HERE = os.path.dirname(os.path.abspath(__file__))
# The quantization_config of checkpoints that people have: Qwen's FP8 with blocks of 128 x 128 and quantized activations, AWQ
# with groups of 128 and zero points, compressed-tensors int8 with a scale for each row.
QUANTIZATION = {
    "fp8": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic",
            "modules_to_not_convert": ["lm_head"]},
    "int4": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm",
             "modules_to_not_convert": ["lm_head"]},
    "int8": {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"], "config_groups": {"group_0": {
        "targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}}}},
}


def quantized_shape(shape, weights, parent):
    """A copy of a shape's folder below `parent` whose config.json says that its weights are quantized."""
    folder = os.path.join(parent, f"{shape}-{weights}")
    shutil.copytree(os.path.join(HERE, "shapes", shape), folder)
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf8") as file:
        config = json.load(file) | {"quantization_config": QUANTIZATION[weights]}
    with open(path, "w", encoding="utf8") as file:
        json.dump(config, file)
    return folder


def start_to_first_token(binary, folder, options):
    """The median of three processes that generate one token."""
    checkpoint = "/tmp/" + os.path.basename(folder)
    call([sys.executable, os.path.join(HERE, "make_checkpoint.py"), folder, checkpoint])
    prompts = checkpoint + ".jsonl"
    with open(prompts, "w", encoding="utf8") as file:
        file.write('{"prompt_token_ids": [1, 2, 3, 4, 5]}\n')
    times = []
    for _ in range(3):
        begin = time.monotonic()
        call([binary, "generate", checkpoint, *options, "--prompts-file", prompts, "--max-tokens", "1", "--json"])
        times.append(time.monotonic() - begin)
    return round(statistics.median(times), 2)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--binary", default=os.path.join(HERE, "../build/release/nanovllm"))
    a.add_argument("--shapes", default="Qwen3-0.6B,Qwen3-8B")
    a.add_argument("--weights", default="bfloat16", help="bfloat16, fp8, int4 and int8, separated by commas")
    a.add_argument("--tp", default="1", help="GPUs that share the model")
    a.add_argument("--option", action="append", default=[], help="a further option for nanovllm bench; repeatable")
    a.add_argument("--out")
    a.add_argument("--start", action="store_true")
    a.add_argument("--decode", default="1,8,64,256", help="batch sizes; may be empty")
    a.add_argument("--prefill", default="16x1024,8x4000", help="prompts x their length; may be empty")
    a.add_argument("--no-throughput", action="store_true", help="without nano-vLLM's 256 sequences")
    o = a.parse_args()
    if unknown := set(o.weights.split(",")) - {"bfloat16", *QUANTIZATION}:
        a.error(f"no such weights: {', '.join(sorted(unknown))}")
    if o.start and set(o.weights.split(",")) - {"bfloat16", "fp8"}:
        a.error("--start writes a checkpoint, and only in bfloat16 or fp8")
    gpu = needed_gpu()
    result = {"gpu": gpu, "tensor_parallel_size": int(o.tp), "date": datetime.date.today().isoformat(), "shapes": {}}
    print(gpu)
    parent = tempfile.TemporaryDirectory()
    for shape, weights in itertools.product(o.shapes.split(","), o.weights.split(",")):
        folder = os.path.join(HERE, "shapes", shape)
        if weights != "bfloat16":
            folder = quantized_shape(shape, weights, parent.name)
            shape = os.path.basename(folder)
        device = ["--device", "cuda", "--tensor-parallel-size", o.tp]
        common = ["--load-format", "dummy", *device, *o.option, "--json"]
        row = result["shapes"][shape] = {}

        def latency(batches, length, out, iterations):
            lines = call([o.binary, "bench", "latency", folder, *common, "--batch-size", batches, "--input-len", length,
                          "--output-len", str(out), "--num-iters", str(iterations)]).splitlines()
            return [json.loads(line) for line in lines]

        def note(name, value):
            row[name] = value
            print(f"{shape} {name}: {value}", flush=True)

        for run in latency(o.decode, "512", 257, 3) if o.decode else []:
            note(f"decode_bs{run['batch_size']}_ms", round(run["decode_ms_per_step"], 3))
        for batch, length in (x.split("x") for x in o.prefill.split(",") if x):
            note(f"prefill_{batch}x{length}_tok_s", round(latency(batch, length, 1, 5)[0]["prefill_tokens_per_second"]))
        if not o.no_throughput:
            run = json.loads(call([o.binary, "bench", "throughput", folder, "--warmup", *common]))
            note("bench_256_tok_s", round(run["output_tokens_per_second"]))
        if o.start:
            note("process_start_to_first_token_s", start_to_first_token(o.binary, folder, device))
    write(result, o.out)


if __name__ == "__main__":
    main()
