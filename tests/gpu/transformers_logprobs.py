#!/usr/bin/env python3
"""Compares prompt log-probabilities with those of transformers on the same GPU, for random weights in a published shape. The
limit is the mean difference between transformers' bfloat16 run and its float32 run. Ours in bfloat16 may differ from its
float32 run by this much (unlike transformers, we do not round the logits to bfloat16), and ours in float32 by a tenth of this.
The exit status is 77 (skipped) if torch, transformers or a GPU is missing.
transformers_logprobs.py NANOVLLM [SHAPE_FOLDER]"""
import json
import os
import random
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LENGTHS = (7, 64, 300, 700)


def ours(binary, folder, prompts, dtype):
    """The log-probability of each token of each prompt but the first one's."""
    lines = "".join(json.dumps({"prompt_token_ids": p}) + "\n" for p in prompts)
    done = subprocess.run([binary, "generate", folder, "--device", "cuda", "--dtype", dtype, "--prompts-file", "-",
                           "--max-tokens", "1", "--temperature", "0", "--prompt-logprobs", "0", "--json"],
                          input=lines, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        sys.exit(f"nanovllm: exit {done.returncode}: {done.stderr.strip()[-300:]}")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [entry[0]["logprob"] for row in rows for entry in row["prompt_logprobs"][1:]]


def theirs(torch, transformers, folder, prompts, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).cuda().eval()
    found = []
    with torch.inference_mode():
        for prompt in prompts:
            ids = torch.tensor([prompt], device="cuda")
            logprobs = model(ids).logits[0].float().log_softmax(-1)
            found += logprobs[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
    del model
    torch.cuda.empty_cache()
    return found


def main():
    try:
        import torch
        import transformers
    except ImportError as error:
        print(f"skipped: {error}")
        sys.exit(77)
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        sys.exit(77)
    torch.backends.cuda.matmul.allow_tf32 = False
    shape = sys.argv[2] if len(sys.argv) > 2 else os.path.join(HERE, "../../bench/shapes/Qwen3-0.6B")
    with open(os.path.join(shape, "config.json"), encoding="utf8") as file:
        vocab_size = json.load(file)["vocab_size"]
    draw = random.Random(1)
    prompts = [[draw.randrange(vocab_size) for _ in range(length)] for length in LENGTHS]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, os.path.join(HERE, "../../bench/make_checkpoint.py"), shape, folder], check=True)
        # Theirs run before ours, because each of them fills the GPU's memory.
        exact = theirs(torch, transformers, folder, prompts, torch.float32)
        rounded = theirs(torch, transformers, folder, prompts, torch.bfloat16)
        found = {dtype: ours(sys.argv[1], folder, prompts, dtype) for dtype in ("float32", "bfloat16")}

    def difference(values):
        assert len(values) == len(exact), (len(values), len(exact))
        return sum(abs(a - b) for a, b in zip(values, exact)) / len(exact)

    limit = difference(rounded)
    print(f"mean absolute difference from transformers' float32 over {len(exact)} tokens: its bfloat16 {limit:.6f}, "
          f"ours in float32 {difference(found['float32']):.6f}, in bfloat16 {difference(found['bfloat16']):.6f}")
    if difference(found["bfloat16"]) > limit or difference(found["float32"]) > limit / 10:
        sys.exit("failed: a difference is above its limit")


if __name__ == "__main__":
    main()
