#!/usr/bin/env python3
"""Writes the checkpoints smollm3 and olmo2 of tests/variants and their golden answers: make_variants.py FOLDER. It needs torch and
transformers. Each answer is computed with a KV cache, by generate() and by one forward pass without a cache, which must agree."""
import json
import os
import random
import sys

import torch
from transformers import Olmo2Config, Olmo2ForCausalLM, SmolLM3Config, SmolLM3ForCausalLM

PROMPT_LENGTHS = [1, 7, 20, 40, 90, 200]
COMMON = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 192, "max_position_embeddings": 512,
          "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "eos_token_id": None}


def prompts(seed):
    rng = random.Random(seed)
    return [[rng.randrange(3, 512) for _ in range(length)] for length in PROMPT_LENGTHS]


def generated(model, ids, end):
    options = {"max_new_tokens": 64, "do_sample": False, "eos_token_id": end, "pad_token_id": 0}
    return model.generate(torch.tensor([ids]), **options)[0, len(ids):].tolist()


def end_tokens(model, seed):
    """Tokens of two answers, so that some rows stop."""
    answers = [generated(model, ids, None) for ids in prompts(seed)]
    return sorted({next(token for token in answers[i][12:] if token not in answers[i][:12]) for i in (1, 4)})


def golden_row(model, name, ids, end):
    answer, gaps, past, new = [], [], None, torch.tensor([ids])
    while len(answer) < 64 and not (answer and answer[-1] in end):
        result = model(new, past_key_values=past, use_cache=True)
        past, logits = result.past_key_values, result.logits[0, -1]
        best = logits.topk(2)
        if not answer:
            first = logits.log_softmax(-1).topk(5)
        gaps.append(float(best.values[0] - best.values[1]))
        answer.append(int(best.indices[0]))
        new = torch.tensor([answer[-1:]])
    whole = model(torch.tensor([ids + answer])).logits[0].log_softmax(-1)
    assert answer == [int(row.argmax()) for row in whole[len(ids) - 1:-1]] == generated(model, ids, end)
    return {"id": name, "prompt_token_ids": ids, "greedy_token_ids": answer,
            "finish_reason": "stop" if answer[-1] in end else "length",
            "first_logprobs_top5": [[int(token), round(float(p), 6)] for token, p in zip(first.indices, first.values)],
            "prompt_logprobs": [None] + [round(float(whole[i - 1, ids[i]]), 6) for i in range(1, len(ids))],
            "gap_min": round(min(gaps), 6), "gap_min_pos": gaps.index(min(gaps)), **({"tie": True} if min(gaps) < 1e-3 else {})}


def make(folder, name, model_class, config, seed):
    torch.manual_seed(seed)
    model = model_class(config)
    generator = torch.Generator().manual_seed(seed)
    for tensor, values in model.named_parameters():
        noise = torch.randn(values.shape, generator=generator)
        values.copy_(1 + 0.3 * noise if values.dim() == 1 else noise * (0.25 if "embed" in tensor or "lm_head" in tensor else 0.1))
    end = end_tokens(model.to(torch.bfloat16).float().eval(), seed)
    model.config.eos_token_id = model.generation_config.eos_token_id = end
    checkpoint = os.path.join(folder, "variants", name)
    model.to(torch.bfloat16).save_pretrained(checkpoint)
    model = model_class.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager").eval()
    os.makedirs(os.path.join(folder, "goldens"), exist_ok=True)
    with open(os.path.join(folder, "goldens", name + ".jsonl"), "w", encoding="utf8") as file:
        for i, ids in enumerate(prompts(seed)):
            file.write(json.dumps(golden_row(model, f"{name}-{i}", ids, end)) + "\n")


with torch.no_grad():
    rope = {"rope_type": "default", "rope_theta": 2000000.0}
    make(sys.argv[1], "smollm3", SmolLM3ForCausalLM,
         SmolLM3Config(**COMMON, num_hidden_layers=4, no_rope_layers=[1, 0, 1, 0], bos_token_id=1, rope_parameters=rope), 61)
    rope = {"rope_type": "default", "rope_theta": 500000.0}
    make(sys.argv[1], "olmo2", Olmo2ForCausalLM, Olmo2Config(**COMMON, num_hidden_layers=3, rope_parameters=rope), 63)
