"""The results of the module."""

import copy
import dataclasses
import inspect
import json
import pickle
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from conftest import GREEDY, ROOT, SMALL, TINY_TALES, golden_answers, golden_prompts, goldens

from nanovllm import LLM, SamplingParams, UserError


@pytest.mark.parametrize("name", ["tiny-tales", "llama", "qwen2", "qwen3-sharded", "qwen3-yarn"])
def test_float32_gives_the_reference_tokens(name: str) -> None:
    folder = TINY_TALES if name == "tiny-tales" else ROOT / "tests/variants" / name
    rows = goldens(name)
    assert len(rows) >= 6
    with LLM(folder, **SMALL) as llm:
        outputs = llm.generate(golden_prompts(rows), GREEDY, use_tqdm=False)
    for index, (row, output) in enumerate(zip(rows, outputs)):
        assert output["index"] == index
        assert output["prompt_token_ids"] == row["prompt_token_ids"]
        assert output["token_ids"] == row["greedy_token_ids"], row["id"]
        assert output["finish_reason"] == row["finish_reason"]
        assert output["text"] == row.get("text", "")
        assert output["stop_reason"] is None


def test_texts_render_and_encode_as_in_transformers(llm: LLM) -> None:
    num_chats = 0
    for row in goldens():
        if "messages" not in row:
            assert llm.tokenizer.encode(row["prompt"]) == row["prompt_token_ids"]
            continue
        num_chats += 1
        arguments = {"add_generation_prompt": True, "enable_thinking": row["enable_thinking"]}
        ids = llm.tokenizer.apply_chat_template(row["messages"], **arguments)
        assert ids == row["prompt_token_ids"]
        text = llm.tokenizer.apply_chat_template(row["messages"], tokenize=False, **arguments)
        assert llm.tokenizer.encode(text, add_special_tokens=False) == ids
    assert num_chats >= 4


def test_decode_keeps_special_tokens_unless_told(llm: LLM) -> None:
    text = "<|im_start|>user\nÜber 😀<|im_end|>"
    ids = llm.tokenizer.encode(text)
    assert llm.tokenizer.decode(ids) == llm.tokenizer.decode(np.array(ids)) == text
    assert llm.tokenizer.decode(ids, skip_special_tokens=True) == "user\nÜber 😀"
    assert llm.tokenizer.decode(ids[0]) == "<|im_start|>"


def test_chat_template_takes_tools_and_a_message_to_continue(llm: LLM) -> None:
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Once upon"}]
    prompt = llm.tokenizer.apply_chat_template(chat, tokenize=False, continue_final_message=True)
    assert prompt.endswith("Once upon")
    parts = [chat[0], {"role": "assistant", "content": [{"type": "text", "text": "Once upon"}]}]
    arguments = {"tokenize": False, "continue_final_message": True}
    assert llm.tokenizer.apply_chat_template(parts, **arguments) == prompt
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    with pytest.raises(UserError, match="image_url"):
        llm.tokenizer.apply_chat_template([image])
    tool = {"type": "function", "function": {"name": "find_fox", "parameters": {}}}
    prompt = llm.tokenizer.apply_chat_template(chat[:1], tools=[tool], tokenize=False)
    template = (Path(TINY_TALES) / "tokenizer_config.json").read_text()
    assert ("find_fox" in prompt) == ("tools" in template)
    with pytest.raises(ValueError, match="return_tensors.*to_transformers"):
        llm.tokenizer.apply_chat_template(chat, return_tensors="pt")


def test_a_continued_message_keeps_its_spaces_if_the_template_does(tmp_path: Path) -> None:
    """As in transformers 5."""
    for file in Path(TINY_TALES).iterdir():
        (tmp_path / file.name).symlink_to(file.absolute())
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").unlink()

    def continued(content: str, *messages: dict[str, Any], final: str = " Once, \n") -> str:
        config["chat_template"] = f"{{% for m in messages %}}<{{{{ {content} }}}}>{{% endfor %}}"
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        with LLM(str(tmp_path), **SMALL) as llm:
            chat = [*messages, {"role": "assistant", "content": final}]
            return llm.tokenizer.apply_chat_template(
                chat, tokenize=False, continue_final_message=True
            )

    user = {"role": "user", "content": "Once"}
    assert continued("m.content", user) == "<Once>< Once, \n"
    assert continued("m.content | trim", user) == "<Once><Once,"
    assert continued("m.content", user, final="") == "<Once><"
    with pytest.raises(ValueError, match="changes the last message"):
        continued("m.content | upper")
    with pytest.raises(ValueError, match="no text to continue"):
        continued("m.role", final=None)  # type: ignore[arg-type]


def test_every_kind_of_prompt_gives_the_same(llm: LLM) -> None:
    row = next(row for row in goldens() if "prompt" in row)
    ids = row["prompt_token_ids"]
    prompts = [row["prompt"], ids, tuple(ids), np.array(ids), np.array(ids, dtype=np.uint16)]
    for output in llm.generate(prompts, GREEDY, use_tqdm=False):
        assert output["token_ids"] == row["greedy_token_ids"]
    same = llm.generate(np.array([ids, ids]), GREEDY, use_tqdm=False)
    assert [o["token_ids"] for o in same] == [row["greedy_token_ids"]] * 2
    assert llm.generate([], use_tqdm=False) == []


def test_dictionaries_of_vllm_are_prompts(llm: LLM) -> None:
    row = next(row for row in goldens() if "prompt" in row)
    text, ids = {"prompt": row["prompt"]}, {"prompt_token_ids": np.array(row["prompt_token_ids"])}
    several = [text, MappingProxyType(text), ids, {**ids, "prompt": "of which the ids are"}]
    for prompts in (text, ids, several):
        outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
        assert len(outputs) == (4 if prompts is several else 1)
        assert all(o["token_ids"] == row["greedy_token_ids"] for o in outputs)
    assert sum((p["token_ids"] for p in llm.stream(ids, GREEDY)), []) == row["greedy_token_ids"]


def test_max_tokens_none_is_limited_by_the_context() -> None:
    with LLM(TINY_TALES, max_model_len=96, **SMALL) as llm:
        params = SamplingParams(max_tokens=None, min_tokens=2**31 - 1, ignore_eos=True)
        params.n = None  # type: ignore[assignment]
        (output,) = llm.generate([[5, 6, 7]], params, use_tqdm=False)
        assert len(output["token_ids"]) == 93 and output["finish_reason"] == "length"
        assert sum(len(p["token_ids"]) for p in llm.stream([5, 6, 7], params)) == 93


def test_sampling_params_for_each_prompt_and_all_fields_of_an_output(llm: LLM) -> None:
    row = goldens()[0]
    prompt = row["prompt_token_ids"]
    params = [
        SamplingParams(0, 1, logprobs=2, prompt_logprobs=0),
        SamplingParams(temperature=1, max_tokens=5, ignore_eos=True, n=3, seed=7),
        SamplingParams(0, 64, stop="Tiny"),
    ]
    first, several, stopped = llm.generate([prompt] * 3, params, use_tqdm=False)
    assert first["finish_reason"] == "length" and 0 <= first["num_cached_tokens"] < len(prompt)
    sampled, best, second = first["logprobs"][0]
    assert sampled["id"] == best["id"] == row["greedy_token_ids"][0] and best["rank"] == 1
    for entry, (token, logprob) in zip((best, second), row["first_logprobs_top5"]):
        assert entry["id"] == token and entry["logprob"] == pytest.approx(logprob, abs=1e-4)
    assert first["prompt_logprobs"][0] is None
    for given, expected in zip(first["prompt_logprobs"][1:], row["prompt_logprobs"][1:]):
        assert given and given[0]["logprob"] == pytest.approx(expected, abs=1e-4)
    assert [len(answer["token_ids"]) for answer in several["outputs"]] == [5, 5, 5]
    assert several["token_ids"] == several["outputs"][0]["token_ids"]
    assert stopped["finish_reason"] == "stop" and stopped["stop_reason"] == "Tiny"
    assert stopped["text"] == row["text"][: row["text"].index("Tiny")]


def test_a_seed_may_be_negative(llm: LLM) -> None:
    seeds = (-5, 2**64 - 5, 5)
    params = [SamplingParams(max_tokens=8, ignore_eos=True, seed=seed) for seed in seeds]
    outputs = llm.generate([[5, 6, 7]] * 3, params, use_tqdm=False)
    ids = [output["token_ids"] for output in outputs]
    assert ids[0] == ids[1] != ids[2]


def test_pieces_of_a_stream_join_to_the_answer(llm: LLM) -> None:
    row = next(row for row in goldens() if len(row["greedy_token_ids"]) > 20)
    pieces = list(llm.stream(row["prompt_token_ids"], GREEDY))
    assert len(pieces) > 10
    assert sum((piece["token_ids"] for piece in pieces), []) == row["greedy_token_ids"]
    assert "".join(piece["text"] for piece in pieces) == row["text"]
    assert [piece["output"] is None for piece in pieces] == [True] * (len(pieces) - 1) + [False]
    assert pieces[-1]["output"] and pieces[-1]["output"]["text"] == row["text"]


def test_streams_that_are_left_and_parallel_streams(llm: LLM) -> None:
    rows = [row for row in goldens() if len(row["greedy_token_ids"]) > 20][:2]
    left = llm.stream(rows[0]["prompt_token_ids"], GREEDY)
    next(left)
    streams = [llm.stream(row["prompt_token_ids"], GREEDY) for row in rows]
    answers: list[list[int]] = [[], []]
    for pieces in zip(*streams):  # takes from both in turns, until the shorter one ends
        for answer, piece in zip(answers, pieces):
            answer += piece["token_ids"]
    left.close()
    for answer, row, stream in zip(answers, rows, streams):
        answer += sum((piece["token_ids"] for piece in stream), [])
        assert answer[:20] == row["greedy_token_ids"][:20]


def test_step_drives_requests_as_nano_vllm_does(llm: LLM) -> None:
    rows = goldens()[:5]
    expected = {llm.add_request(row["prompt_token_ids"], GREEDY): row for row in rows}
    prefill = decode = 0
    got = {}
    llm.generate(["Once"], SamplingParams(max_tokens=3), use_tqdm=False)  # loses nothing of them
    while not llm.is_finished():
        finished, num_tokens = llm.step()
        got.update(finished)
        prefill += max(num_tokens, 0)
        decode -= min(num_tokens, 0)
    assert got == {i: row["greedy_token_ids"] for i, row in expected.items()}
    assert decode > 60
    assert llm.step() == ([], 0)


def test_step_returns_an_aborted_request(llm: LLM) -> None:
    request = llm.add_request("Once", SamplingParams(max_tokens=1000, ignore_eos=True))
    llm.step()
    assert llm.abort(request) and not llm.abort(request)
    finished, _ = llm.step()
    assert [i for i, _ in finished] == [request]
    assert llm.is_finished()


def test_stats_after_cancelled_requests_show_what_is_free() -> None:
    with LLM(TINY_TALES, **SMALL) as llm:
        long = SamplingParams(max_tokens=1000, ignore_eos=True)
        for piece in llm.generate(["Once", "There was", "A fox"], long, stream=True):
            if len(piece["token_ids"]) and llm.stats().num_running == 3:
                break
        stats = llm.stats()
        assert (stats.num_running, stats.num_waiting) == (0, 0)
        assert stats.num_free_blocks == stats.num_blocks > 0
        request = llm.add_request("Once", long)
        llm.step()
        assert llm.stats().num_running == 1 and llm.abort(request)
        assert llm.stats().num_running == 0
        assert [i for i, _ in llm.step()[0]] == [request]


def test_names_of_nano_vllm_mean_the_same() -> None:
    options = {
        "max_num_batched_tokens": 256,
        "max_num_seqs": 4,
        "max_model_len": 512,
        "gpu_memory_utilization": 0.5,
        "tensor_parallel_size": 1,
        "enforce_eager": True,
        "kvcache_block_size": 256,
        "num_kvcache_blocks": 8,
    }
    rows = [row for row in goldens() if len(row["prompt_token_ids"]) < 400]
    with LLM(TINY_TALES, dtype="float32", **options) as llm:
        assert llm.max_model_len == 512 and llm.vocab_size == 8192
        outputs = llm.generate(golden_prompts(rows), GREEDY, use_tqdm=False)
    assert [o["token_ids"] for o in outputs] == golden_answers(rows)
    # 4 blocks of 256 tokens have 1,024 tokens.
    with pytest.raises(ValueError, match="max_model_len is 1025; .*1024 tokens"):
        LLM(TINY_TALES, **{**options, "num_kvcache_blocks": 4, "max_model_len": 1025})
    LLM(TINY_TALES, num_kvcache_blocks=-1, max_model_len=64, max_num_seqs=1).exit()


def test_names_and_values_of_vllm_mean_the_same(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    options: dict[str, Any] = {
        "trust_remote_code": True,
        "swap_space": 4,
        "revision": None,
        "download_dir": None,
        "tokenizer_mode": "auto",
        "quantization": None,
        "enable_chunked_prefill": True,
        "task": "generate",
        "disable_log_stats": True,
        "hf_overrides": {},
        "max_logprobs": 20,
        "dtype": "float",
        "load_format": "safetensors",
        "trace": tmp_path / "trace",  # a path, not only a text
    }
    row = goldens()[0]
    with LLM(TINY_TALES, max_model_len=512, **options) as llm:
        output = llm.generate([row["prompt_token_ids"]], GREEDY, use_tqdm=False)[0]
    assert output["token_ids"] == row["greedy_token_ids"]
    assert (tmp_path / "trace").stat().st_size > 0
    LLM(TINY_TALES, max_model_len=64, dtype="half").exit()
    assert not recwarn.list


def test_yarn_allows_a_context_longer_than_the_models(recwarn: pytest.WarningsRecorder) -> None:
    rope = {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 2048}
    given: list[dict[str, Any]] = [
        {"rope_scaling": rope},
        {"rope_scaling": json.dumps(rope)},
        {"hf_overrides": {"rope_parameters": rope}},
    ]
    for options in given:
        with LLM(TINY_TALES, max_model_len=4096, max_num_seqs=1, **options) as llm:
            assert llm.max_model_len == 4096
    assert not recwarn.list
    with pytest.warns(UserWarning, match="max_model_len 9999 is lowered to 4096"):
        LLM(TINY_TALES, max_model_len=9999, max_num_seqs=1, rope_scaling=rope).exit()


def test_bar_shows_both_speeds(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["Once"] * 3, SamplingParams(max_tokens=30, ignore_eos=True))
    bar = capsys.readouterr().err
    assert "Generating: 100%" in bar and "3/3" in bar
    assert "Prefill=" in bar and "Decode=" in bar and "Decode=0tok/s]" not in bar.split("\r")[-1]
    llm.generate(["Once"], use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_sampling_params_are_data() -> None:
    params = SamplingParams(0.5, 3, True, stop=["a"], logit_bias={5: 1.5}, seed=2**64 - 1)
    assert pickle.loads(pickle.dumps(params)) == copy.deepcopy(params) == params
    assert params != SamplingParams(0.5, 3, True)
    assert SamplingParams() == SamplingParams(temperature=1.0, max_tokens=64, ignore_eos=False)
    assert dataclasses.replace(params, temperature=1.5).max_tokens == 3
    with pytest.raises(ValueError, match="top_p is 7"):
        dataclasses.replace(params, top_p=7)
    assert dataclasses.asdict(params)["stop"] == ["a"] and not hasattr(params, "__dict__")


def test_sampling_params_accept_vllms_arguments_that_ask_for_nothing() -> None:
    neutral: dict[str, Any] = {
        "best_of": None,
        "use_beam_search": False,
        "length_penalty": 1,
        "early_stopping": False,
        "include_stop_str_in_output": False,
        "spaces_between_special_tokens": True,
        "truncate_prompt_tokens": None,
        "guided_decoding": None,
        "structured_outputs": None,
        "logits_processors": None,
        "output_kind": None,
        "extra_args": None,
        "flat_logprobs": False,
        "skip_clone": True,
    }
    assert SamplingParams(0.5, n=2, **neutral) == SamplingParams(0.5, n=2)
    for n in (1, 3):
        assert SamplingParams(n=n, best_of=n) == SamplingParams(n=n)
    names = [field.name for field in dataclasses.fields(SamplingParams)]
    assert list(inspect.signature(SamplingParams).parameters) == [
        *names,
        "best_of",
        "guided_decoding",
    ]
