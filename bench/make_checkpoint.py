#!/usr/bin/env python3
"""Writes a checkpoint with random bfloat16 weights for a config.json, for runs that need a real file.
make_checkpoint.py CONFIG_FOLDER OUT_FOLDER [JSON]
JSON: values that replace those of config.json, for example {"num_hidden_layers": 4}"""
import array
import json
import math
import os
import random
import struct
import sys


def tensors(c):
    """Name and shape of every weight of a Qwen3 model."""
    hidden, inner, head = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (hidden,)
        yield at + "post_attention_layernorm.weight", (hidden,)
        yield at + "self_attn.q_norm.weight", (head,)
        yield at + "self_attn.k_norm.weight", (head,)
        for name, shape in (("q", (q, hidden)), ("k", (kv, hidden)), ("v", (kv, hidden)), ("o", (hidden, q))):
            yield at + f"self_attn.{name}_proj.weight", shape
        for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
            yield at + f"mlp.{name}_proj.weight", shape
    yield "model.norm.weight", (hidden,)
    if not c.get("tie_word_embeddings"):
        yield "lm_head.weight", (c["vocab_size"], hidden)


def main():
    source, out = sys.argv[1:3]
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(source, "config.json"), encoding="utf8") as file:
        config = json.load(file)
    config.update(json.loads(sys.argv[3]) if len(sys.argv) > 3 else {})
    with open(os.path.join(out, "config.json"), "w", encoding="utf8") as file:
        json.dump(config, file)
    chance = random.Random(1)
    count = 2**20 + 7  # a prime: no two rows of a matrix are equal
    # The upper half of a float32 is its value in bfloat16, rounded towards zero.
    floats = struct.pack(f"<{count}f", *(chance.gauss(0, 0.02) for _ in range(count)))
    values = array.array("H", floats)[1::2].tobytes()
    header, at = {"__metadata__": {"format": "pt"}}, 0  # transformers requires the metadata
    for name, shape in tensors(config):
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(out, "model.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name, entry in list(header.items())[1:]:
            size = 2 * math.prod(entry["shape"])
            if name.endswith("norm.weight"):
                file.write(struct.pack("<H", 0x3F80) * (size // 2))
                continue
            while size > 0:
                size -= file.write(values[:size])


if __name__ == "__main__":
    main()
