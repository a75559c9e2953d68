"""Writes a checkpoint whose answers are given texts. So tests know what a model answers that thinks and calls tools.

Each text is cut into pieces that are tokens of the vocabulary, all different. The output matrix maps each token to the one that
follows it, and everything between the embedding and the output adds nothing. The chat template ends with the token
<|script:NAME|>: after this token comes the text of that name. NAME is the variable `script`, or, in the template of an agent's
model, it is chosen by the conversation."""
from __future__ import annotations

import array
import json
from pathlib import Path
from typing import Any

HIDDEN = 512  # also the size of the vocabulary: the embedding of a token is a unit vector
HEAD = 128
SPECIAL = ["<|im_start|>", "<|im_end|>"]
TEMPLATE = """
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content or '' }}{{ m.reasoning_content or '' }}{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor -%}
<|im_end|>
{% endfor -%}
<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}<|script:{{ script or 'plain' }}|>"""

OTHERWISE = "What is this?"  # what a model of an agent says to what it does not expect
# The texts of a conversation are cut off, since each of their bytes is a token: prompts of coding agents have 100,000 of them.
AGENT_TEMPLATE = """
{%- set seen = namespace(results=0, last='') -%}
{%- for tool in tools or [] %}{{ tool.function.name }} {% endfor %}
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ (m.content or '')[:200] }}{% for call in m.tool_calls or [] %}{{ (call.function | tojson)[:200] }}{% endfor -%}
<|im_end|>
{% if m.role == 'tool' %}{% set seen.results = seen.results + 1 %}{% set seen.last = m.content %}{% endif -%}
{% endfor -%}
<|im_start|>assistant
"""


def byte_tokens() -> list[str]:
    """The characters that stand for the bytes in a byte-level vocabulary, as in GPT-2."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def pieces(text: str, used: set[str], tags: tuple[str, ...]) -> list[str]:
    """Cuts a text into pieces of about three characters that are not used yet. A tag is one piece, as for Qwen3."""
    result: list[str] = []
    while text:
        tag = next((t for t in ("<think>", "</think>", "<tool_call>", "</tool_call>", *tags) if text.startswith(t)), "")
        end = min((text.find(t, 1) for t in tags if t in text[1:]), default=len(text))  # of what is before the next tag
        least = max(3, len(tag)) if end == len(text) or end >= 6 else end
        size = next((n for n in range(least, end + 1) if text[:n] not in used), 0)
        if size == 0:  # the rest is a piece already
            text = result.pop() + text
            size = len(text)
        result.append(text[:size])
        used.add(text[:size])
        text = text[size:]
    return result


def write_tensors(path: Path, tensors: dict[str, tuple[list[int], array.array[float]]]) -> None:
    header: dict[str, Any] = {}
    at = 0
    for name, (shape, values) in tensors.items():
        size = 4 * len(values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, values in tensors.values():
            values.tofile(file)


def write_model(folder: Path, scripts: dict[str, str], template: str = TEMPLATE, special: tuple[str, ...] = (),
                context: int = 4096) -> None:
    """`special`: tags that are special tokens. Each may occur only once in the scripts."""
    vocab = {token: i for i, token in enumerate(byte_tokens())}
    used = set(vocab)
    added = [*SPECIAL, "<think>", "</think>"]
    used.update(added)
    chains = []
    for name, text in scripts.items():
        begin = f"<|script:{name}|>"
        chains.append([begin, *pieces(text, used, special), "<|im_end|>"])
        added += chains[-1][:-1]
    added = list(dict.fromkeys(added))
    ids = vocab | {token: len(vocab) + i for i, token in enumerate(added)}
    assert len(ids) <= HIDDEN, f"{len(ids)} tokens"

    tokens = [{"id": ids[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
               "special": token.startswith("<|") or token in special} for token in added]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": None,
                 "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                           "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []}}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "vocab_size": HIDDEN,
              "num_hidden_layers": 1, "num_attention_heads": HIDDEN // HEAD, "num_key_value_heads": 1, "head_dim": HEAD,
              "intermediate_size": HEAD, "hidden_act": "silu", "max_position_embeddings": context, "rms_norm_eps": 1e-6,
              "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float32", "eos_token_id": ids["<|im_end|>"]}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": template.lstrip()}))
    (folder / "config.json").write_text(json.dumps(config))

    def matrix(rows: int, columns: int, ones: dict[int, int] | None = None) -> tuple[list[int], array.array[float]]:
        values = array.array("f", bytes(4 * rows * columns))
        for row, column in (ones or {}).items():
            values[row * columns + column] = 1
        return [rows, columns], values

    norm = ([HIDDEN], array.array("f", [1] * HIDDEN))
    output = matrix(HIDDEN, HIDDEN)
    for chain in chains:
        for token, following in zip(chain, chain[1:]):
            output[1][ids[following] * HIDDEN + ids[token]] = 2
    layer = "model.layers.0."
    write_tensors(folder / "model.safetensors", {
        "model.embed_tokens.weight": matrix(HIDDEN, HIDDEN, {i: i for i in range(HIDDEN)}),
        layer + "input_layernorm.weight": norm,
        layer + "self_attn.q_proj.weight": matrix(HIDDEN, HIDDEN),
        layer + "self_attn.k_proj.weight": matrix(HEAD, HIDDEN),
        layer + "self_attn.v_proj.weight": matrix(HEAD, HIDDEN),
        layer + "self_attn.o_proj.weight": matrix(HIDDEN, HIDDEN),
        layer + "post_attention_layernorm.weight": norm,
        layer + "mlp.gate_proj.weight": matrix(HEAD, HIDDEN),
        layer + "mlp.up_proj.weight": matrix(HEAD, HIDDEN),
        layer + "mlp.down_proj.weight": matrix(HIDDEN, HEAD),
        "model.norm.weight": norm,
        "lm_head.weight": output,
    })


def write_agent(folder: Path, turns: list[tuple[str, str]]) -> None:
    """A model that acts in turns: the answer to a conversation with N results of tools is the second text of turn N. The first
    text must be part of the last result, so the last answer shows that all results have arrived."""
    template = AGENT_TEMPLATE
    for number, (word, _) in enumerate(turns):
        template += f"{{% {'elif' if number else 'if'} tools and seen.results == {number} and {json.dumps(word)} in seen.last %}}"
        template += f"<|script:{number}|>"
    scripts = {str(number): answer for number, (_, answer) in enumerate(turns)}
    write_model(folder, scripts | {"other": OTHERWISE}, template + "{% else %}<|script:other|>{% endif %}", context=65536)
