#!/usr/bin/env python3
"""Writes a checkpoint with random weights for a config.json, for runs that need a real file: bfloat16, or E4M3 with scales for
blocks if its quantization_config has the quant_method fp8.
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


def stored(c):
    """Name, dtype and shape of every tensor in the file. Tensors of one byte for each element are E4M3."""
    quantization = c.get("quantization_config", {"quant_method": None})
    if quantization["quant_method"] not in (None, "fp8"):
        sys.exit(f"make_checkpoint.py writes bfloat16 and fp8, not {quantization['quant_method']}")
    for name, shape in tensors(c):
        if quantization["quant_method"] is None or "_proj." not in name:
            yield name, "BF16", shape
            continue
        yield name, "F8_E4M3", shape
        blocks = [-(-size // block) for size, block in zip(shape, quantization["weight_block_size"])]
        yield name + "_scale_inv", "BF16", blocks


def main():
    source, out = sys.argv[1:3]
    with open(os.path.join(source, "config.json"), encoding="utf8") as file:
        config = json.load(file)
    config.update(json.loads(sys.argv[3]) if len(sys.argv) > 3 else {})
    all_tensors = list(stored(config))
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "config.json"), "w", encoding="utf8") as file:
        json.dump(config, file)
    chance = random.Random(1)
    count = 2**20 + 7  # a prime: no two rows of a matrix are equal
    # The upper half of a float32 is its value in bfloat16, rounded towards zero.
    floats = struct.pack(f"<{count}f", *(chance.gauss(0, 0.02) for _ in range(count)))
    values = {"BF16": array.array("H", floats)[1::2].tobytes(),
              "F8_E4M3": bytes(chance.randrange(0x20, 0x40) | chance.choice((0, 0x80)) for _ in range(count))}  # 1/8 to 2
    header, at = {"__metadata__": {"format": "pt"}}, 0  # transformers requires the metadata
    for name, dtype, shape in all_tensors:
        size = (1 if dtype == "F8_E4M3" else 2) * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(out, "model.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name, entry in list(header.items())[1:]:
            begin, end = entry["data_offsets"]
            size = end - begin
            if name.endswith(("norm.weight", "_scale_inv")):  # 1, and 0.02
                file.write(struct.pack("<H", 0x3F80 if name.endswith("norm.weight") else 0x3CA4) * (size // 2))
                continue
            while size > 0:
                size -= file.write(values[entry["dtype"]][:size])


if __name__ == "__main__":
    main()
