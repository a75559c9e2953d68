#!/usr/bin/env python3
"""Compares tokens drawn in decode steps with one prefill of prompt and answer by the same engine. No reference is needed:
decode and prefill compute the same function with different kernels, so in bfloat16 each of them may differ from float32 only
by bfloat16's rounding, which the same binary measures here with the same weights. The rounding errors of the two are
independent, so they may differ from each other by the square root of two times that.

For each batch size, with CUDA graphs and without (--enforce-eager), there are two draws:
- greedy, without log-probabilities, as most users run it: prefill must rank the drawn tokens first (--least-first is the
  share), and the log-probability of the others must be close to its best token's (--largest-gap);
- at temperature 1 with log-probabilities: the mean difference between decode and float32 is at most TOLERANCE times that
  between bfloat16 prefill and float32 (because both are means of a sample), and each draw's mean difference between decode and
  prefill is at most the square root of two times that.
Without --least-first and --largest-gap the limits come from the float32 run: see judge_greedy().

decode_against_prefill.py NANOVLLM MODEL --device cpu|cuda [options]
Exit status: 0 passed, 1 failed, 77 skipped (fewer GPUs than ranks)."""
import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PROMPT_LENGTHS = (5, 33, 64, 129, 300)
LEAST_PROMPTS = 16  # of a draw; with a batch of one sequence, they run one after the other
FLOAT32_PROMPTS = 4  # prompts of a draw that are also computed in float32, whose attention kernel is slow
TOLERANCE = 1.1


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--batch-sizes", default="1,8,16,24,48,64,128,256")
    parser.add_argument("--tokens", type=int, default=48, help="of an answer")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--config", help='JSON, for example {"num_hidden_layers": 6}: MODEL is a config.json in which these '
                        "values are replaced, and random bfloat16 weights are written for it")
    parser.add_argument("--least-first", type=float, help="least share of the greedy tokens that prefill ranks first")
    parser.add_argument("--largest-gap", type=float, help="largest difference of log-probabilities to prefill's best token")
    parser.add_argument("--temperature", type=float, default=0,
                        help="of the greedy draw; a value above 0 must fail, which shows that the comparison finds wrong tokens")
    return parser.parse_args()


def num_gpus():
    try:
        return len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return 0


class Engine:
    """Runs of the binary on one model."""

    def __init__(self, options, model):
        self.command = [options.binary, "generate", model, "--json", "--prompts-file", "-", "--device", options.device,
                        "--max-model-len", str(max(PROMPT_LENGTHS) + options.tokens + 1), "--no-enable-prefix-caching",
                        "-tp", str(options.ranks)]
        if options.device == "cuda":  # enough for 256 sequences; other tests use the GPU at the same time
            self.command += ["--kv-cache-memory-bytes", str(6 << 30)]

    def generate(self, requests, *options):
        lines = "".join(json.dumps(request) + "\n" for request in requests)
        done = subprocess.run([*self.command, *options], input=lines, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join([*self.command, *options])}: exit status {done.returncode}: {done.stderr.strip()[-500:]}")
        outputs = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(outputs) == len(requests), (len(outputs), len(requests))
        return outputs

    def draw(self, prompts, num_tokens, batch_size, extra, **params):
        params = {"max_tokens": num_tokens, "ignore_eos": True, **params}
        requests = [{"prompt_token_ids": prompt, "sampling_params": params} for prompt in prompts]
        return self.generate(requests, "--dtype", "bfloat16", "--max-num-seqs", str(batch_size), *extra)

    def prefill(self, texts, dtype):
        """For each text and token: (log-probability, rank, the best token's log-probability, the best token)."""
        params = {"max_tokens": 1, "temperature": 0, "ignore_eos": True, "prompt_logprobs": 1}
        outputs = self.generate([{"prompt_token_ids": text, "sampling_params": params} for text in texts], "--dtype", dtype)

        def read(entry):  # the prompt's token, then the best one if that is another token
            best = max(entry, key=lambda e: e["logprob"])
            return entry[0]["logprob"], entry[0]["rank"], best["logprob"], best["id"]

        return [[entry and read(entry) for entry in output["prompt_logprobs"]] for output in outputs]


class Draw:
    """The answers of one run, and prefill's log-probabilities of their tokens."""

    def __init__(self, name, prompts, outputs):
        self.name = name
        self.answer_starts = [len(prompt) for prompt in prompts]
        self.texts = [prompt + output["token_ids"] for prompt, output in zip(prompts, outputs)]
        self.own = [[entry[0]["logprob"] for entry in output.get("logprobs") or []] for output in outputs]
        self.prefill = {}

    def num_texts(self, dtype):
        return min(len(self.texts), FLOAT32_PROMPTS) if dtype == "float32" else len(self.texts)

    def take(self, dtype, found):
        self.prefill[dtype] = [next(found)[start:] for start in self.answer_starts[:self.num_texts(dtype)]]

    def tokens(self, dtype, num_texts):
        return [entry for text in self.prefill[dtype][:num_texts] for entry in text]


def judge_greedy(draw, options, other_best, largest_difference):
    """Returns what is wrong with the greedy draw. The default limits are: rounding to bfloat16 makes another token the best at a
    share `other_best` of the positions. Two independent roundings do so at sqrt(2) times that number, and three standard
    deviations of this number are added. Each of two log-probabilities, the drawn token's and the best one's, may have the
    largest error that was seen."""
    tokens = draw.tokens("bfloat16", None)
    misses = sum(rank != 1 for _, rank, _, _ in tokens)
    gap = max(best - logprob for logprob, _, best, _ in tokens)
    expected = math.sqrt(2) * other_best * len(tokens)
    most = (1 - options.least_first) * len(tokens) if options.least_first else expected + 3 * math.sqrt(expected + 1)
    largest_gap = options.largest_gap or 2 * largest_difference
    print(f"{draw.name}: prefill ranks {len(tokens) - misses} of {len(tokens)} tokens first (at least "
          f"{len(tokens) - int(most)}), the largest gap is {gap:.4f} (at most {largest_gap:.4f})")
    return ([f"{draw.name}: {misses} of {len(tokens)} tokens are not prefill's best"] if misses > most else []) + \
           ([f"{draw.name}: a token is {gap:.4f} below prefill's best"] if gap > largest_gap else [])


def mean_difference(pairs):
    return sum(abs(a - b) for a, b in pairs) / len(pairs)


def judge_sampled(draw, limit):
    own = [logprob for answer in draw.own for logprob in answer]
    prefill = [entry[0] for entry in draw.tokens("bfloat16", None)]
    assert len(own) == len(prefill)
    difference = mean_difference(list(zip(own, prefill)))
    print(f"{draw.name}: the mean difference between decode and prefill is {difference:.5f} (at most {limit:.5f})")
    return [f"{draw.name}: decode differs from prefill by {difference:.5f}"] if difference > limit else []


def judge_decode(draws, limit):
    """Returns what is wrong with the difference between decode and float32 over all draws."""
    difference = mean_difference([(own, entry[0]) for draw in draws for answer, entries in zip(draw.own, draw.prefill["float32"])
                                  for own, entry in zip(answer, entries)])
    print(f"all draws: the mean difference between decode and float32 is {difference:.5f} (at most {limit:.5f})")
    return [f"decode differs from float32 by {difference:.5f}"] if difference > limit else []


def run(options, model):
    engine = Engine(options, model)
    with open(os.path.join(model, "config.json"), encoding="utf8") as file:
        vocab_size = json.load(file)["vocab_size"]
    greedy, sampled = [], []
    for batch_size in map(int, options.batch_sizes.split(",")):
        chance = random.Random(batch_size)
        prompts = [[chance.randrange(3, vocab_size) for _ in range(chance.choice(PROMPT_LENGTHS))]
                   for _ in range(max(batch_size, LEAST_PROMPTS))]
        for name, extra in (("graphs", ()), ("eager", ("--enforce-eager",)))[:1 if options.device == "cpu" else 2]:
            name = f"batch {batch_size}, {name if options.device == 'cuda' else 'CPU'}"
            greedy.append(Draw(name, prompts, engine.draw(prompts, options.tokens, batch_size, extra,
                                                          temperature=options.temperature)))
            sampled.append(Draw(name, prompts, engine.draw(prompts, options.tokens, batch_size, extra,
                                                           temperature=1, seed=7, logprobs=0)))
    for dtype in ("bfloat16", "float32"):
        found = iter(engine.prefill([t for draw in greedy + sampled for t in draw.texts[:draw.num_texts(dtype)]], dtype))
        for draw in greedy + sampled:
            draw.take(dtype, found)

    def both(draws):  # prefill's entries of the same tokens: (in bfloat16, in float32)
        return [pair for draw in draws for pair in zip(*(draw.tokens(dtype, FLOAT32_PROMPTS) for dtype in ("bfloat16", "float32")))]

    logprobs = [(a[0], b[0]) for a, b in both(sampled)]
    rounding, largest = mean_difference(logprobs), max(abs(a - b) for a, b in logprobs)
    other_best = sum(a[3] != b[3] for a, b in both(greedy)) / len(both(greedy))
    print(f"bfloat16 prefill against float32 over {len(logprobs)} tokens: mean difference {rounding:.5f}, largest {largest:.4f}, "
          f"{other_best:.2%} have another best token")
    faults = judge_decode(sampled, TOLERANCE * rounding)
    for a, b in zip(greedy, sampled):
        faults += judge_greedy(a, options, other_best, largest) + judge_sampled(b, math.sqrt(2) * rounding)
    return faults


def main():
    options = parse_options()
    if options.device == "cuda" and num_gpus() < options.ranks:
        print(f"skipped: needs {options.ranks} GPUs; {num_gpus()} are here")
        sys.exit(77)
    if options.config is None:
        faults = run(options, options.model)
    else:
        # Not `--load-format dummy`: a float32 run of that has weights that are not rounded to bfloat16.
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, os.path.join(HERE, "../../bench/make_checkpoint.py"), options.model, folder,
                            options.config], check=True)
            faults = run(options, folder)
    for fault in faults:
        print(f"failed: {fault}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
