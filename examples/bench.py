"""Measures tokens per second with random prompts, as nano-vLLM's bench.py does: 256 sequences with
prompts and answers of 100 to 1,024 tokens each, the same ones as in `nanovllm bench throughput`.

python examples/bench.py [MODEL] [SEQUENCES] [THREADS]
"""

import sys
from random import randint, seed
from time import perf_counter

from nanovllm import LLM, SamplingParams


def main(model: str = "models/tiny-tales", num_seqs: str = "256", threads: str = "0") -> None:
    seed(0)
    prompts = [[randint(0, 10000) for _ in range(randint(100, 1024))] for _ in range(256)]
    lengths = [randint(100, 1024) for _ in prompts]
    prompts, lengths = prompts[: int(num_seqs)], lengths[: int(num_seqs)]

    llm = LLM(model, threads=int(threads))
    prompts = [[token % llm.vocab_size for token in prompt] for prompt in prompts]
    params = [SamplingParams(temperature=0.6, max_tokens=n, ignore_eos=True) for n in lengths]
    llm.generate(["Benchmark: "], use_tqdm=False)

    start = perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    seconds = perf_counter() - start
    total = sum(lengths)
    print(f"Total: {total}tok, Time: {seconds:.2f}s, Throughput: {total / seconds:.2f}tok/s")


if __name__ == "__main__":
    main(*sys.argv[1:])
