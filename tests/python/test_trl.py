"""TRL's calls of vLLM, as its trainers and its generation backend make them in one process."""

import math
import warnings
from typing import Any

import pytest
from conftest import SMALL, TINY_TALES, golden_prompts, goldens

from nanovllm import LLM, SamplingParams


@pytest.fixture(scope="module")
def llm() -> Any:
    """With the options that TRL gives; those without a meaning here are named in a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options: dict[str, Any] = {
            "model": TINY_TALES,
            "tensor_parallel_size": 1,
            "gpu_memory_utilization": 0.3,
            "max_model_len": 1024,
            "max_num_seqs": 16,
            "enable_sleep_mode": False,
            "model_impl": "auto",
            "distributed_executor_backend": "external_launcher",
            "seed": 0,
            "max_num_batched_tokens": 4096,
            "logprobs_mode": "processed_logprobs",
            "quantization": None,
            "trust_remote_code": False,
        }
        with LLM(**{**options, **SMALL}) as made:
            yield made


def sampled_first(outputs: Any) -> tuple[list[list[list[float]]], list[list[list[int]]]]:
    """Log-probabilities and token ids of all answers, at each position sorted by rank."""
    values: list[list[list[float]]] = []
    ids: list[list[list[int]]] = []
    for output in outputs:
        for answer in output.outputs:
            ranked = [sorted(at.items(), key=lambda item: item[1].rank) for at in answer.logprobs]
            values.append([[entry.logprob for _, entry in items] for items in ranked])
            ids.append([[token_id for token_id, _ in items] for items in ranked])
    return values, ids


@pytest.mark.parametrize("num_generations, logprobs", [(1, 0), (4, 0), (2, 3)])
def test_answers_and_log_probabilities_of_a_group(
    llm: LLM, num_generations: int, logprobs: int
) -> None:
    prompts = golden_prompts(goldens()[:3])
    params = SamplingParams(
        n=num_generations,
        repetition_penalty=1.0,
        temperature=0.9,
        top_p=1.0,
        top_k=-1,
        min_p=0.0,
        max_tokens=12,
        logprobs=logprobs,
    )
    given = [{"prompt_token_ids": ids} for ids in prompts]
    outputs = llm.generate(given, sampling_params=params, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == prompts
    completions = [answer.token_ids for output in outputs for answer in output.outputs]
    values, ids = sampled_first(outputs)
    assert len(completions) == len(values) == num_generations * len(prompts)
    for completion, of_answer, ids_of_answer in zip(completions, values, ids):
        assert len(completion) == len(of_answer) <= 12
        for token_id, at, ids_at in zip(completion, of_answer, ids_of_answer):
            assert token_id in ids_at and max(1, logprobs) <= len(ids_at) <= logprobs + 1
            assert all(math.isfinite(value) and value <= 0 for value in at)
            assert at == sorted(at, reverse=True)


def test_trl_s_own_function_reads_the_outputs(llm: LLM) -> None:
    reason = "TRL or PyTorch is not there; the other test makes the same calls"
    backend = pytest.importorskip("trl.generation.vllm_generation", reason=reason)
    params = SamplingParams(n=2, max_tokens=8, logprobs=2)
    outputs = llm.generate(["Once upon a time"] * 2, sampling_params=params, use_tqdm=False)
    assert backend.extract_logprobs(outputs) == sampled_first(outputs)
