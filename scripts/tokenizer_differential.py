#!/usr/bin/env python3
"""Compares the tokenizer with the Python package `tokenizers` on seeded random strings of many scripts.

    tokenizer_differential.py MODEL [--binary build/release/nanovllm] [--count N] [--seed S]

MODEL is a folder with a tokenizer.json. Encoding is compared with and without special tokens. Decoding is compared on the ids
of the strings and on random ids, with and without special tokens. Needs `pip install tokenizers`. The exit status is 1 if there
is a difference.
"""
import argparse
import json
import random
import shlex
import subprocess
import sys
import unicodedata

from tokenizers import Tokenizer
from tokenizers.normalizers import NFC

# Text that tokenizers have handled wrongly: case folding, white space that \s matches and that it does not match, combining marks,
# jamo, joiners, parts of words.
SNIPPETS = [
    "'s", "'S", "'\u017f", "'T", "'re", "'RE", "'lL", "'", "''", "don't", "I'LL", " ", "  ", "   ", "\t", "\n", "\r\n",
    "\n\n", " \n", "\n ", "\u00a0", "\u1680", "\u180e", "\u2003", "\u2028", "\u202f", "\u3000", "\u0085", "\u200b",
    "\u200d", "\ufeff", "\u0000", "\u001f", "\u007f", "0", "12", "12345", "\u0663\u0664", "\u216b", "\u00bd", "\u00b2",
    "e\u0301", "\u00e9", "\u1e9b\u0323", "\u0344", "\u212b", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u0915\u093c",
    "a\u0315\u0300\u05ae\u0316b", "\u0f71\u0f72\u0f74", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea",
    "\u2764\ufe0f", "\U0001d15e", "\ufb01", "\u1e9e", "the", "The", " the", "hello", " world", "ing", "http://", "==", "...",
    "!=", "()", "{}", "\u2581", "\u2581\u2581", "<0x41>", "<0x0A>", "\u0120", "\u010a", "\u4f60\u597d", "\u4e16\u754c", "\u3042", "\u30ab\u3099",
    "\u041f\u0440\u0438", "\u0645\u0631\u062d\u0628\u0627", "\u05e9\u05c1", "\u0939\u093f\u0928\u094d\u0926\u0940", "\u0e44\u0e17\u0e22", "\u1ec7", "abc123def", "a" * 70, " " * 40,
]
BLOCKS = [(0x20, 0x7F), (0x20, 0x7F), (0xA0, 0x250), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE80), (0x1E00, 0x2070),
          (0x2070, 0x2C00), (0x3000, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xFB00, 0xFFFE), (0x10000, 0x11000),
          (0x1D400, 0x1D800), (0x1F300, 0x1FB00), (0, 0x110000)]


def same_unicode(c):
    """Whether `tokenizers` and Python agree on the character; the normalizers of `tokenizers` have older Unicode tables."""
    return all(NFC().normalize_str(text) == unicodedata.normalize("NFC", text)
               for text in ("q\u0345" + c, unicodedata.normalize("NFD", c)))


def random_text(rng, added):
    parts = []
    for _ in range(rng.randrange(1, 12)):
        kind = rng.random()
        if kind < 0.5:
            parts.append(rng.choice(SNIPPETS))
        elif kind < 0.56 and added:
            parts.append(rng.choice(added))
        else:
            low, high = rng.choice(BLOCKS)
            for _ in range(rng.randrange(1, 6)):
                c = chr(rng.randrange(low, high))
                if unicodedata.category(c) not in ("Cs", "Cn") and same_unicode(c):
                    parts.append(c)
    return "".join(parts)


def run(command, rows):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    out = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    lines = [json.loads(line) for line in out.split("\n") if line]
    if len(lines) != len(rows):
        sys.exit(f"{shlex.join(command)}: {len(lines)} lines for {len(rows)}")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--binary", default="build/release/nanovllm")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    oracle = Tokenizer.from_file(f"{args.model}/tokenizer.json")
    rng = random.Random(args.seed)
    added = [token.content for token in oracle.get_added_tokens_decoder().values()][:40]
    texts = [random_text(rng, added) for _ in range(args.count)]
    size = oracle.get_vocab_size()
    id_lists = [[rng.randrange(size) for _ in range(rng.randrange(1, 9))] for _ in range(args.count // 4)]
    id_lists += [oracle.encode(text).ids for text in texts[:args.count // 4]]

    failures = 0

    def compare(what, given, ours, theirs):
        nonlocal failures
        if ours != theirs:
            failures += 1
            if failures <= 10:
                print(f"{what} of {given!r}\n  ours   {ours!r}\n  theirs {theirs!r}")

    for special in (True, False):
        flags = ["--json"] if special else ["--json", "--no-special-tokens"]
        ours = run([args.binary, "tokenize", args.model, *flags], [{"text": t} for t in texts])
        for text, row in zip(texts, ours):
            compare(f"encode(special={special})", text, row["ids"], oracle.encode(text, add_special_tokens=special).ids)
        flags = ["--json"] if special else ["--json", "--keep-special-tokens"]
        ours = run([args.binary, "detokenize", args.model, *flags], [{"ids": ids} for ids in id_lists])
        for ids, row in zip(id_lists, ours):
            compare(f"decode(skip={special})", ids, row["text"], oracle.decode(ids, skip_special_tokens=special))
    print(f"{args.model}: {len(texts)} texts, {len(id_lists)} id lists, seed {args.seed}: {failures} differences")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
