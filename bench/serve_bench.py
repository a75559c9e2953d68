#!/usr/bin/env python3
"""Measures what serving over HTTP costs over running offline, with random weights.
serve_bench.py [--binary build/release/nanovllm] [--shapes Qwen3-0.6B,Qwen3-8B] [--rounds 3] [--out FILE.json] [-- ENGINE OPTIONS]

For each shape, `bench throughput` and `bench serve` (256 streams, one event a token, the client on the same machine) run nano-vLLM's
256 sequences in turn, each in a fresh process after a run that is not measured. It prints these figures:
offline_tok_s, served_tok_s: output tokens a second, the median of the rounds.
share: the median of served / offline of each round.
server_us_per_token: processor time of the server's I/O thread for each streamed token.
cached_16k_ttft_ms: the time to the first token of a prompt of 16,000 tokens that is wholly cached, the median of 20."""
import argparse
import datetime
import json
import os
import random
import statistics
import tempfile

from measuring import call, gpu, write
from serve_load import Server

HERE = os.path.dirname(os.path.abspath(__file__))


def client(binary, server, *options):
    return json.loads(call([binary, "bench", "serve", "--base-url", f"http://127.0.0.1:{server.port}", "--json", *options]))


def served(binary, folder, options, vocab, num_prompts):
    """Output tokens a second of the 256 sequences, and the I/O thread's time for one of them."""
    server = Server(binary, folder, options)
    client(binary, server, "--random-input-len", "512", "--random-output-len", "64", "--num-prompts", num_prompts, "--vocab-size", vocab)
    before = server.seconds()["io"]
    run = client(binary, server, "--vocab-size", vocab, "--num-prompts", num_prompts)
    spent = server.seconds()["io"] - before
    server.process.terminate()
    server.process.wait(60)
    return run["output_throughput"], 1e6 * spent / run["total_output_tokens"]


def cached_ttft(binary, folder, options, vocab, length):
    chance = random.Random(1)
    line = json.dumps({"prompt_token_ids": [chance.randrange(int(vocab)) for _ in range(length)], "sampling_params":
                       {"max_tokens": 2, "ignore_eos": True, "temperature": 0}}) + "\n"
    server = Server(binary, folder, options)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write(line * 21)
        file.flush()
        client(binary, server, "--dataset", file.name, "--num-prompts", "1")
        run = client(binary, server, "--dataset", file.name, "--max-concurrency", "1")
    server.process.terminate()
    server.process.wait(60)
    return run["median_ttft_ms"]


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--binary", default=os.path.join(HERE, "../build/release/nanovllm"))
    a.add_argument("--shapes", default="Qwen3-0.6B,Qwen3-8B", help="folders of bench/shapes, or paths")
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--num-prompts", default="256", help="only the first N of the sequences")
    a.add_argument("--cached-len", type=int, default=16000, help="tokens of the cached prompt; 0: none")
    a.add_argument("--out")
    a.add_argument("options", nargs="*", help="options of the engine, after --")
    o = a.parse_args()
    result = {"device": gpu() or "CPU", "date": datetime.date.today().isoformat(), "shapes": {}}
    for shape in o.shapes.split(","):
        folder = shape if os.path.isdir(shape) else os.path.join(HERE, "shapes", shape)
        with open(os.path.join(folder, "config.json"), encoding="utf8") as file:
            vocab = str(min(json.load(file)["vocab_size"], 10001))
        weights = [] if os.path.exists(os.path.join(folder, "model.safetensors")) else ["--load-format", "dummy"]
        options = weights + o.options
        offline, online, costs = [], [], []
        for i in range(o.rounds):
            for what in ("offline", "online") if i % 2 == 0 else ("online", "offline"):
                if what == "offline":
                    run = json.loads(call([o.binary, "bench", "throughput", folder, "--warmup", "--json", "--num-prompts",
                                           o.num_prompts, *options]))
                    offline.append(run["output_tokens_per_second"])
                else:
                    speed, cost = served(o.binary, folder, options, vocab, o.num_prompts)
                    online.append(speed)
                    costs.append(cost)
        row = result["shapes"][shape] = {
            "offline_tok_s": round(statistics.median(offline)), "served_tok_s": round(statistics.median(online)),
            "share": round(statistics.median(s / t for s, t in zip(online, offline)), 4),
            "server_us_per_token": round(statistics.median(costs), 2),
            "rounds": [{"offline_tok_s": round(t), "served_tok_s": round(s)} for s, t in zip(online, offline)]}
        if o.cached_len:
            row["cached_16k_ttft_ms"] = round(cached_ttft(o.binary, folder, options, vocab, o.cached_len), 2)
        print(shape, json.dumps(row), flush=True)
    write(result, o.out)


if __name__ == "__main__":
    main()
