#!/usr/bin/env python3
"""Compares the speed of encoding with tiktoken and the Python package `tokenizers`, on one thread each and the same texts.

    tokenizer_peers.py MODEL TEXTFILE... [--binary build/release/bench/tokenizer_bench]

MODEL is a folder with a byte-level BPE tokenizer.json whose ids are in the order of the merges, like Qwen3's. tiktoken gets the
same vocabulary and pattern, but has less work, because it does not normalize and does not search for added tokens. Prints MB/s,
the best of 7 runs, and reports texts whose number of tokens differs from that of `tokenizers`. Needs `pip install tokenizers
tiktoken`.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
try:
    import tiktoken
    from tokenizers import Tokenizer
except ImportError:
    sys.exit("tokenizer_peers.py needs two packages: pip install tokenizers tiktoken")

RUNS = 7


def bytes_of_characters():
    """GPT-2's table of the characters that represent the bytes in a byte-level vocabulary."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


def tiktoken_of(folder):
    with open(f"{folder}/tokenizer.json", encoding="utf-8") as file:
        config = json.load(file)
    table = bytes_of_characters()
    ranks = {bytes(table[c] for c in token): rank for token, rank in config["model"]["vocab"].items()}
    patterns = [p["pattern"]["Regex"] for p in config["pre_tokenizer"]["pretokenizers"] if p["type"] == "Split"]
    return tiktoken.Encoding("model", pat_str=patterns[0], mergeable_ranks=ranks, special_tokens={})


def best_of(work):
    best = float("inf")
    for _ in range(RUNS):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--binary", default="build/release/bench/tokenizer_bench")
    args = parser.parse_args()
    theirs, tokenizers = tiktoken_of(args.model), Tokenizer.from_file(f"{args.model}/tokenizer.json")
    for path in args.texts:
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
        size = len(text.encode())
        line = subprocess.run([args.binary, args.model, path], capture_output=True, text=True, check=True).stdout.split("\n")[1]
        ours, num_ids = float(re.search(r"([\d.]+) MB/s", line)[1]), int(re.search(r"(\d+) tokens", line)[1])
        ids = tokenizers.encode(text, add_special_tokens=False).ids
        for name, count in ("ours", num_ids), ("tiktoken", len(theirs.encode_ordinary(text))):
            if count != len(ids):
                print(f"{path}: {name} encodes it as {count} tokens, tokenizers as {len(ids)}")
        tik = size / best_of(lambda: theirs.encode_ordinary(text)) / 1e6
        hf = size / best_of(lambda: tokenizers.encode(text, add_special_tokens=False)) / 1e6
        print(f"{path}: {size} bytes, {len(ids)} tokens: {ours:.1f} MB/s, tiktoken {tik:.1f} ({ours / tik:.1f} x), "
              f"tokenizers {hf:.1f} ({ours / hf:.1f} x)")


if __name__ == "__main__":
    main()
