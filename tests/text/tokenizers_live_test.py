#!/usr/bin/env python3
"""Compares tokenizers of every setting with the Python package `tokenizers`: tokenizers_live_test.py NANOVLLM VENV [--random N]
[--seed S] [--every N]. Prints each difference, and exits with 1 if there is one."""
import argparse
import contextlib
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "serving"))
import python_packages

parser = argparse.ArgumentParser()
parser.add_argument("nanovllm")
parser.add_argument("venv")
parser.add_argument("--random", type=int, default=20, help="random sequences of components, of each kind")
parser.add_argument("--texts", type=int, default=30, help="random texts for each tokenizer")
parser.add_argument("--every", type=int, default=5, help="takes each n-th combination of options of a model")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--only", default="", help="a part of a kind's name")
args = parser.parse_args()
python_packages.require(args.venv, {"tokenizers": "tokenizers==0.23.3"})

import tokenizer_settings as settings
import tokenizers

rng = random.Random(args.seed)
folder = tempfile.TemporaryDirectory()
counts = {"tokenizers": 0, "texts": 0, "differences": 0}


def run(command, rows, *flags):
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    done = subprocess.run([args.nanovllm, command, folder.name, "--json", *flags], input=lines, capture_output=True, text=True)
    if done.returncode != 0:
        return done.stderr.strip()
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def differs(kind, config, what, ours, theirs):
    counts["differences"] += 1
    if counts["differences"] <= 40:
        config = {key: config[key] for key in ("normalizer", "pre_tokenizer", "decoder")} | {
            "model": {key: value for key, value in config["model"].items() if key not in ("vocab", "merges") and value}}
        print(f"{kind} {json.dumps(config)}\n  {what}\n  ours   {ours}\n  theirs {theirs}")


def unless_it_panics(call, *arguments, **named):
    """The package panics where it computes offsets that do not exist."""
    try:
        return call(*arguments, **named)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return None


def load(config):
    text = json.dumps(config)
    pathlib.Path(folder.name, "tokenizer.json").write_text(text)
    oracle = unless_it_panics(tokenizers.Tokenizer.from_str, text)
    counts["tokenizers"] += oracle is not None
    return oracle


def shown(config, ids):
    """Ids as the text of their tokens."""
    tokens = {number: token for token, number in config["model"]["vocab"].items()}
    text = "".join(chr(int(t[3:5], 16)) if (t := tokens.get(i, f"[{i}]"))[:3] == "<0x" else t for i in ids)
    with contextlib.suppress(UnicodeError):
        text = text.encode("latin-1").decode()
    return repr(text)


def compare_ids(kind, config, texts):
    oracle = load(config)
    if oracle is None:
        return
    answers = run("tokenize", [{"text": text} for text in texts])
    if isinstance(answers, str):
        return differs(kind, config, "refused", answers, "")
    for text, answer in zip(texts, answers, strict=True):
        encoding = unless_it_panics(oracle.encode_batch_fast, [text])
        if encoding is None:
            continue
        counts["texts"] += 1
        if answer["ids"] != encoding[0].ids:
            differs(kind, config, repr(text), shown(config, answer["ids"]), shown(config, encoding[0].ids))


def compare_texts(kind, config, lists):
    oracle = load(config)
    if oracle is None:
        return
    answers = run("detokenize", [{"ids": ids} for ids in lists], "--keep-special-tokens")
    if isinstance(answers, str):
        return differs(kind, config, "refused", answers, "")
    tokens = {number: token for token, number in config["model"]["vocab"].items()}
    for ids, answer in zip(lists, answers, strict=True):
        expected = unless_it_panics(oracle.decode, ids, skip_special_tokens=False)
        if expected is None:
            continue
        counts["texts"] += 1
        if answer["text"] != expected:
            differs(kind, config, [tokens.get(i) for i in ids], repr(answer["text"]), repr(expected))


def random_texts():
    added = [content for content, _ in settings.ADDED]
    return [settings.random_text(rng, added) for _ in range(args.texts)]


def every_character():
    """Characters that Python's version of Unicode has, each between letters, some in one text."""
    characters = [chr(c) for c in range(1, 0x110000) if unicodedata.category(chr(c)) not in ("Cs", "Cn")]
    return ["a".join(characters[i:i + 400]) for i in range(0, len(characters), 400)]


def main():
    if args.only in "normalizer pre_tokenizer":
        for kind, config in settings.encoders():
            if args.only in kind:
                compare_ids(kind, config, settings.TEXTS + random_texts())
    if args.only in "model":
        for config in itertools.islice(settings.models(), 0, None, args.every):
            compare_ids("model", config, settings.MODEL_TEXTS + random_texts()[:5])
    if args.only in "decoder":
        for decoder in [*settings.decoders(), None]:
            config = settings.tokenizer_json(settings.DECODED, decoder=decoder)
            size = len(settings.DECODED) + len(settings.ADDED)
            compare_texts("decoder", config, [[i] for i in range(size)] + [settings.random_ids(rng, size) for _ in range(200)])
    if args.only in "random":
        for _ in range(args.random):
            compare_ids("random", settings.random_encoder(rng), settings.TEXTS + random_texts())
            compare_ids("random", settings.random_byte_level(rng), settings.TEXTS + random_texts())
            config = settings.random_decoder(rng)
            size = len(settings.DECODED) + len(settings.ADDED)
            compare_texts("random", config, [settings.random_ids(rng, size) for _ in range(100)])
    if args.only in "characters":
        texts = every_character()
        for part in settings.character_classes():
            compare_ids("characters", settings.tokenizer_json(**part, **settings.REVEALING), texts)
    print(", ".join(f"{count} {what}" for what, count in counts.items()), f"with tokenizers {tokenizers.__version__}, seed {args.seed}")
    sys.exit(counts["differences"] > 0)


main()
