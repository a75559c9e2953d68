"""Scripts in the shapes in which users of vLLM and nano-vLLM write them; only names of packages and
models differ."""

import json
import math
import time
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import TINY_TALES as MODEL

from nanovllm import LLM, SamplingParams, TokensPrompt


def test_offline_inference(capsys: pytest.CaptureFixture[str]) -> None:
    prompts = ["Hello, my name is", "The king of the country is", "The capital of", "The future is"]
    sampling_params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=16)
    llm = LLM(model=MODEL)
    outputs = llm.generate(prompts, sampling_params)
    for output in outputs:
        prompt = output.prompt
        generated_text = output.outputs[0].text
        print(f"Prompt: {prompt!r}\nOutput: {generated_text!r}")
    assert capsys.readouterr().out.count("Prompt: 'The ") == 3


def test_nano_vllm_example(capsys: pytest.CaptureFixture[str]) -> None:
    llm = LLM(MODEL, enforce_eager=True, tensor_parallel_size=1)
    tokenizer = llm.tokenizer
    sampling_params = SamplingParams(temperature=0.6, max_tokens=16)
    prompts = ["introduce yourself", "list all prime numbers within 100"]
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        for prompt in prompts
    ]
    outputs = llm.generate(prompts, sampling_params)
    for prompt, output in zip(prompts, outputs):
        print(f"Prompt: {prompt!r}")
        print(f"Completion: {output['text']!r}")
    assert capsys.readouterr().out.count("Completion: ") == 2


def test_nano_vllm_bench() -> None:
    llm = LLM(MODEL, enforce_eager=False, max_model_len=4096 // 4)
    prompt_token_ids = [[(7 * i + j) % 8192 for j in range(50 + i)] for i in range(8)]
    sampling_params = [
        SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=10 + i) for i in range(8)
    ]
    llm.generate(["Benchmark: "], SamplingParams())
    start = time.time()
    outputs = llm.generate(prompt_token_ids, sampling_params, use_tqdm=False)
    total_tokens = sum(sp.max_tokens or 0 for sp in sampling_params)
    assert f"{total_tokens / (time.time() - start):.2f}tok/s"
    assert sum(len(output["token_ids"]) for output in outputs) == total_tokens


def test_step_by_step() -> None:
    llm = LLM(MODEL)
    for prompt in ("Once upon", "There was"):
        llm.add_request(prompt, SamplingParams(temperature=0.6, max_tokens=8, ignore_eos=True))
    outputs: dict[int, list[int]] = {}
    prefill_throughput = decode_throughput = 0.0
    while not llm.is_finished():
        start = time.perf_counter()
        output, num_tokens = llm.step()
        if num_tokens > 0:
            prefill_throughput = num_tokens / (time.perf_counter() - start)
        elif num_tokens < 0:
            decode_throughput = -num_tokens / (time.perf_counter() - start)
        for seq_id, token_ids in output:
            outputs[seq_id] = token_ids
    texts = [llm.tokenizer.decode(outputs[seq_id]) for seq_id in sorted(outputs)]
    assert len(texts) == 2 and prefill_throughput > 0 and decode_throughput > 0


def test_chat_with_a_batch_of_conversations() -> None:
    llm = LLM(model=MODEL)
    sampling_params = llm.get_default_sampling_params()
    sampling_params.max_tokens = 24
    conversation = [
        {"role": "system", "content": "You are a helpful assistant"},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello! How can I assist you today?"},
        {"role": "user", "content": "introduce yourself"},
    ]
    outputs = llm.chat(conversation, sampling_params, use_tqdm=False)
    assert len(outputs) == 1 and outputs[0].outputs[0].text
    conversations = [conversation for _ in range(10)]
    outputs = llm.chat(conversations, sampling_params, use_tqdm=True)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [24] * 10


def test_scoring_by_prompt_logprobs() -> None:
    """The perplexity of texts, as evaluation harnesses compute it."""
    llm = LLM(model=MODEL, dtype="float32")
    tokenizer = llm.get_tokenizer()
    texts = ["Once upon a time there was a king", "Time a upon king there once was a"]
    prompts = [TokensPrompt(prompt_token_ids=tokenizer.encode(text)) for text in texts]
    params = SamplingParams(temperature=0, prompt_logprobs=1, max_tokens=1)
    perplexities = []
    for output in llm.generate(prompts, sampling_params=params, use_tqdm=False):
        assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
        total = 0.0
        for token_id, logprobs in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:]):
            assert logprobs is not None
            total += logprobs[token_id].logprob
        perplexities.append(math.exp(-total / (len(output.prompt_token_ids) - 1)))
    assert perplexities[0] < perplexities[1]


def test_reading_logprobs() -> None:
    llm = LLM(model=MODEL)
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=3)
    answer = llm.generate("Once upon a", params)[0].outputs[0]
    assert answer.logprobs is not None
    rows = []
    for token_id, candidates in zip(answer.token_ids, answer.logprobs):
        best = max(candidates, key=lambda token: candidates[token].logprob)
        assert best == token_id and candidates[best].rank == 1
        for candidate, logprob in candidates.items():
            rows.append((candidate, logprob.decoded_token, math.exp(logprob.logprob)))
    assert len(rows) == 4 * 3 and rows[0][1] == " time"


def test_reranking_n_answers_by_cumulative_logprob() -> None:
    llm = LLM(model=MODEL)
    params = SamplingParams(n=4, temperature=1.0, top_p=0.95, max_tokens=12, logprobs=0, seed=1)
    (output,) = llm.generate(["The old woman"], params, use_tqdm=False)
    ranked = sorted(
        output.outputs,
        key=lambda answer: (answer.cumulative_logprob or 0.0) / len(answer.token_ids),
        reverse=True,
    )
    assert sorted(answer.index for answer in ranked) == [0, 1, 2, 3]
    assert len({answer.text for answer in ranked}) > 1


def test_classification_by_allowed_token_ids() -> None:
    llm = LLM(model=MODEL)
    tokenizer = llm.get_tokenizer()
    labels = [" good", " bad"]
    ids = [tokenizer.encode(label, add_special_tokens=False)[0] for label in labels]
    params = SamplingParams(temperature=0, max_tokens=1, allowed_token_ids=ids, logprobs=20)
    reviews = ["The fox was kind, and everybody said that he was very", "The witch was very"]
    for output in llm.generate(reviews, params):
        assert output.outputs[0].text in labels
        assert output.outputs[0].token_ids[0] in ids


def test_streaming(capsys: pytest.CaptureFixture[str]) -> None:
    llm = LLM(MODEL)
    messages = [{"role": "user", "content": "introduce yourself"}]
    text = ""
    for piece in llm.chat(messages, SamplingParams(temperature=0, max_tokens=32), stream=True):
        print(piece.text, end="", flush=True)
        text += piece["text"]
        if piece.output is not None:
            assert piece.output.outputs[0].text == text
    assert capsys.readouterr().out == text != ""


def test_stop_strings_and_reasons() -> None:
    llm = LLM(MODEL)
    params = SamplingParams(temperature=0, max_tokens=64, stop=["\n\n", " was"], min_tokens=2)
    answer = llm.generate("Once upon", params, use_tqdm=False)[0].outputs[0]
    assert answer.finish_reason == "stop" and answer.stop_reason == " was"
    assert answer.text == " a time there"
    answer = llm.generate("Once", SamplingParams(max_tokens=2, ignore_eos=True))[0].outputs[0]
    assert answer.finish_reason == "length" and answer.stop_reason is None


def test_seeds_and_generators(tmp_path: Any) -> None:
    """A data set that is read as it comes, with a seed for each row; results as JSON lines."""
    rows: list[dict[str, Any]] = [{"prompt": f"Number {i}:", "seed": i} for i in range(6)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def prompts() -> Iterator[str]:
        with open(tmp_path / "in.jsonl") as file:
            for line in file:
                yield json.loads(line)["prompt"]

    llm = LLM(MODEL, dtype="float32", seed=0)
    params = [SamplingParams(max_tokens=6, seed=row["seed"]) for row in rows]
    outputs = llm.generate(prompts(), params, use_tqdm=False)
    with open(tmp_path / "out.jsonl", "w") as file:
        for output in outputs:
            file.write(json.dumps(output) + "\n")
    again = llm.generate([rows[4]["prompt"]], params[4], use_tqdm=False)
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert json.loads(lines[4])["token_ids"] == again[0]["token_ids"]
    assert [output.prompt for output in outputs] == [row["prompt"] for row in rows]


def test_a_bar_of_one_s_own() -> None:
    """vLLM takes a function in place of tqdm."""
    shown = []

    class Bar:
        def __init__(self, total: int, **_: Any) -> None:
            shown.append(total)

        def set_postfix(self, *_: Any, **__: Any) -> None: ...
        def update(self, count: int) -> None:
            shown.append(-count)

        def close(self) -> None: ...

    LLM(MODEL).generate(["Once"] * 3, SamplingParams(max_tokens=2), use_tqdm=Bar)
    assert shown[0] == 3 and sum(shown) == 0


def test_a_wrapper_class_that_passes_all_of_vllms_arguments(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """The shape of LangChain's class VLLM, which gives every argument that it knows."""

    class Wrapper:
        def __init__(self, model: str, vllm_kwargs: dict[str, Any], **params: Any) -> None:
            self.client = LLM(
                model=model,
                tensor_parallel_size=1,
                trust_remote_code=False,
                dtype="auto",
                download_dir=None,
                **vllm_kwargs,
            )
            self.defaults = {
                "n": 1,
                "best_of": None,
                "max_tokens": 512,
                "top_k": -1,
                "top_p": 1.0,
                "temperature": 1.0,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "stop": None,
                "ignore_eos": False,
                "use_beam_search": False,
                "logprobs": None,
                **params,
            }

        def generate(self, prompts: list[str], stop: list[str] | None = None) -> list[list[str]]:
            params = SamplingParams(**{**self.defaults, "stop": stop})
            outputs = self.client.generate(prompts, params, lora_request=None, use_tqdm=False)
            return [[output.outputs[0].text] for output in outputs]

    llm = Wrapper(MODEL, {"gpu_memory_utilization": 0.5, "swap_space": 4}, temperature=0)
    texts = llm.generate(["Once upon", "There was"], stop=["."])
    assert len(texts) == 2 and texts[0][0].startswith(" a time") and "." not in texts[0][0]
    assert not recwarn.list
