"""Wrong input raises a clear error, and other requests are not affected."""

from typing import Any

import pytest
from conftest import GREEDY, ROOT, SMALL, TINY_TALES, goldens

from nanovllm import LLM, EngineDead, SamplingParams, UserError


def still_right(llm: LLM) -> None:
    row = goldens()[0]
    output = llm.generate([row["prompt_token_ids"]], GREEDY, use_tqdm=False)[0]
    assert output["token_ids"] == row["greedy_token_ids"]


@pytest.mark.parametrize(
    "field, value, kind",
    [
        ("temperature", -0.1, ValueError),
        ("temperature", float("nan"), ValueError),
        ("temperature", float("inf"), ValueError),
        ("temperature", 1e300, ValueError),
        ("temperature", "hot", TypeError),
        ("max_tokens", 0, ValueError),
        ("max_tokens", 2.5, TypeError),
        ("max_tokens", True, TypeError),
        ("max_tokens", 2**70, TypeError),
        ("ignore_eos", "yes", TypeError),
        ("top_p", 0, ValueError),
        ("top_k", -2, ValueError),
        ("min_p", 1.1, ValueError),
        ("min_tokens", 65, ValueError),
        ("stop", [""], ValueError),
        ("stop", 3, TypeError),
        ("stop_token_ids", [-1], ValueError),
        ("presence_penalty", 3, ValueError),
        ("frequency_penalty", -3, ValueError),
        ("repetition_penalty", 0, ValueError),
        ("repetition_penalty", 1e-300, ValueError),
        ("logit_bias", {1: 101}, ValueError),
        ("logit_bias", [1], TypeError),
        ("allowed_token_ids", [], ValueError),
        ("bad_words", [""], ValueError),
        ("logprobs", 21, ValueError),
        ("prompt_logprobs", -1, ValueError),
        ("n", 0, ValueError),
        ("seed", 2**64, TypeError),
        ("seed", True, TypeError),
        ("temperature", False, TypeError),
    ],
)
def test_sampling_params_say_what_is_wrong(field: str, value: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=field):
        SamplingParams(**{field: value})


@pytest.mark.parametrize(
    "arguments, kind, reason",
    [
        ({"use_beam_search": True}, UserError, "^use_beam_search=True is not supported"),
        ({"best_of": 3}, UserError, "^best_of=3 is not supported"),
        ({"best_of": 3, "n": 2}, UserError, "^best_of=3 is not supported"),
        ({"length_penalty": 0.5}, UserError, "^length_penalty=0.5 is not supported"),
        ({"guided_decoding": {}}, UserError, "^guided_decoding={} is not supported"),
        ({"temprature": 0.5}, TypeError, "no argument 'temprature'; did you mean 'temperature'.$"),
        ({"beams": 5}, TypeError, "^SamplingParams has no argument 'beams'$"),
    ],
)
def test_unsupported_sampling_params_are_named(
    arguments: dict[str, Any], kind: type[Exception], reason: str
) -> None:
    with pytest.raises(kind, match=reason):
        SamplingParams(**arguments)


@pytest.mark.parametrize(
    "prompt, kind, reason",
    [
        ("", ValueError, "empty"),
        ([], ValueError, "empty"),
        ([8192], ValueError, "8192"),
        ([-1], ValueError, "-1"),
        ([2**40], TypeError, "token ids"),
        ([1.5], TypeError, "token ids"),
        (["a"], TypeError, "token ids"),
        ([[1]], TypeError, "token ids"),
        (7, TypeError, "token ids"),
        (None, TypeError, "token ids"),
        ({"text": "Once"}, TypeError, "'text'.*'prompt_token_ids'"),
        ({"prompt": "Once", "cache_salt": "x"}, TypeError, "'cache_salt'.*'prompt_token_ids'"),
        ({5: 6}, TypeError, "'5'.*'prompt_token_ids'"),
        ({}, TypeError, "nothing.*'prompt_token_ids'"),
        ({"prompt": None}, TypeError, "nothing.*'prompt_token_ids'"),
        ({"prompt": [5]}, TypeError, "must be a string"),
        ({"prompt_token_ids": "Once"}, TypeError, "list of token ids"),
        ({"prompt_token_ids": []}, ValueError, "empty"),
        ("\ud800", UserError, "prompt is not a valid text: .*surrogates"),
        ([1] * 3000, ValueError, "3000 tokens"),
    ],
)
def test_a_bad_prompt_does_not_affect_others(
    llm: LLM, prompt: Any, kind: type[Exception], reason: str
) -> None:
    with pytest.raises(kind, match=reason):
        llm.generate(["Once", prompt], use_tqdm=False)
    with pytest.raises(kind, match=reason):
        next(llm.stream(prompt))
    with pytest.raises(kind, match=reason):
        llm.add_request(prompt)
    assert llm.is_finished()
    still_right(llm)


def test_counts_and_forms_of_arguments(llm: LLM) -> None:
    with pytest.raises(ValueError, match="2 prompts and 3 SamplingParams"):
        llm.generate(["a", "b"], [SamplingParams()] * 3)
    for prompts in ({"Once"}, frozenset(["Once"])):
        with pytest.raises(TypeError, match="list of prompts"):
            llm.generate(prompts)
    for both in ({}, {"prompts": "a", "prompt_token_ids": [1]}):
        with pytest.raises(TypeError, match="either prompts or prompt_token_ids"):
            llm.generate(**both)  # type: ignore[call-overload]
    for wrong in ("Once", {"prompt": "Once"}, 5):
        with pytest.raises(TypeError, match="list of token ids"):
            llm.generate(prompt_token_ids=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lora_request"):
        llm.generate(["Once"], lora_request="x")  # type: ignore[call-overload]
    for name in ("priority", "tokenization_kwargs", "guided_options_request"):
        assert llm.generate([], **{name: None}) == []  # type: ignore[arg-type]
        with pytest.raises(UserError, match=f"^{name}=3 is not supported"):
            llm.generate(["Once"], **{name: 3})  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="generate has no argument 'steam'; did you mean 'stream'"):
        llm.generate(["Once"], steam=None)
    chat = [{"role": "user", "content": "Hi"}]
    with pytest.raises(UserError, match="^chat_template_content_format='openai' is not supported"):
        llm.chat(chat, chat_template_content_format="openai")
    with pytest.raises(TypeError, match="chat has no argument 'tool'; did you mean 'tools'"):
        llm.chat(chat, tool=None)
    neutral = {"chat_template_content_format": "auto", "mm_processor_kwargs": None}
    assert len(llm.chat(chat, SamplingParams(max_tokens=1), False, **neutral)) == 1  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'a', 'b'"):
        llm.generate({"a": "Once", "b": "There"})
    for params in (["Once"], [None], {"max_tokens": 3}, 5):
        with pytest.raises(TypeError, match="must be SamplingParams"):
            llm.generate(["Once"], params)  # type: ignore[arg-type]
    for call in (llm.tokenizer.encode, llm.tokenizer.decode):
        with pytest.raises(TypeError, match="it must be a"):
            call(None)  # type: ignore[arg-type]
    params = SamplingParams()
    params.top_p = 7  # after the check of the constructor
    with pytest.raises(ValueError, match="top_p is 7"):
        llm.generate(["Once"], params, use_tqdm=False)
    with pytest.raises(ValueError, match="stop_token_ids|logit_bias"):
        llm.generate(["Once"], SamplingParams(logit_bias={9000: 1}), use_tqdm=False)
    assert not llm.abort(10**6)
    still_right(llm)


@pytest.mark.parametrize(
    "name, replacement",
    [
        ("scheduler", "nanovllm.engine.scheduler"),
        ("model_runner", "nanovllm/runtime/model_runner.h"),
        ("llm_engine", "add_request"),
        ("beam_search", "n="),
        ("score", "prompt_logprobs"),
        ("sleep", "exit"),
        ("nothing", "$"),
    ],
)
def test_an_attribute_that_is_missing_names_the_replacement(
    llm: LLM, name: str, replacement: str
) -> None:
    with pytest.raises(AttributeError, match=f"^LLM has no attribute '{name}'.*{replacement}"):
        getattr(llm, name)
    assert not hasattr(llm, name)


def test_the_place_of_a_bad_prompt_is_named(llm: LLM) -> None:
    prompts: list[Any] = ["Once"] * 1000
    prompts[417] = [8192]
    with pytest.raises(UserError, match="^prompt 417 of 1000: the prompt contains token id 8192"):
        llm.generate(prompts)
    prompts[417] = ["Once"]
    with pytest.raises(TypeError, match="^prompt 417 of 1000: a prompt is"):
        list(llm.generate(prompts, stream=True))
    prompts[417] = "\ud800"
    with pytest.raises(UserError, match="^prompt 417 of 1000: .*surrogates"):
        llm.generate(prompts)
    each = [SamplingParams() for _ in range(3)]
    each[2].top_p = 7
    with pytest.raises(UserError, match="^prompt 2 of 3: top_p is 7"):
        llm.generate(["Once"] * 3, each)
    with pytest.raises(UserError, match="^top_p is 7"):
        llm.generate(["Once"] * 3, each[2])
    with pytest.raises(UserError, match="^the prompt contains token id 8192"):
        llm.generate([[8192]])
    user: dict[str, Any] = {"role": "user", "content": [{"type": "x"}]}
    chats = [[{"role": "user", "content": "Hi"}], [user]]
    with pytest.raises(UserError, match='^conversation 1 of 2: .*type "x"'):
        llm.chat(chats)
    still_right(llm)


@pytest.mark.parametrize(
    "name, suggestion",
    [
        ("max_seqs", "; did you mean 'max_num_seqs'"),
        ("enable_eplb", ""),
        ("enable_chunked_prefill", ""),
    ],
)
def test_an_unknown_option_is_named_with_one_that_is_near(name: str, suggestion: str) -> None:
    text = f"LLM has no option '{name}', which is ignored{suggestion}"
    with pytest.warns(UserWarning, match=f"{text}.?$") as warned:
        LLM(TINY_TALES, max_model_len=64, **{name: 3}).exit()  # type: ignore[arg-type]
    assert len(warned) == 1 and warned[0].filename == __file__


def test_a_context_above_the_model_s_is_lowered_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="max_model_len 4096 is lowered.*2048") as warned:
        llm = LLM(TINY_TALES, max_model_len=4096, **SMALL)
    assert len(warned) == 1 and warned[0].filename == __file__
    with llm:
        assert llm.max_model_len == 2048


@pytest.mark.parametrize(
    "options, kind, reason",
    [
        ({"dtype": "int3"}, ValueError, "dtype is 'int3'"),
        ({"device": 3}, TypeError, "device is 3"),
        ({"max_num_seqs": 0}, ValueError, "max_num_seqs is 0"),
        ({"max_num_seqs": "many"}, TypeError, "max_num_seqs is 'many'"),
        ({"kvcache_block_size": 17}, ValueError, "^kvcache_block_size is 17"),
        ({"block_size": 17}, ValueError, "^block_size is 17"),
        ({"kvcache_block_size": "a"}, TypeError, "^kvcache_block_size is 'a'"),
        ({"num_kvcache_blocks": -5}, ValueError, "^num_kvcache_blocks is -5"),
        ({"num_gpu_blocks_override": -5}, ValueError, "^num_gpu_blocks_override is -5"),
        ({"quantization": "nf4"}, ValueError, "^quantization is 'nf4'"),
        ({"enable_lora": True}, UserError, "^enable_lora=True is not supported"),
        ({"kv_cache_dtype": "int4"}, ValueError, "^kv_cache_dtype is 'int4'"),
        ({"hf_overrides": {"a": 1}}, UserError, '^hf_overrides: "a" cannot be overridden'),
        ({"rope_scaling": {"type": "yarn"}}, UserError, "^rope_scaling: factor is missing"),
        ({"rope_scaling": "yarn"}, UserError, "^rope_scaling: not valid JSON"),
        ({"speculative_config": {}}, UserError, "^speculative_config={} is not supported"),
        ({"revision": "main"}, UserError, "^revision='main' is not supported"),
        ({"max_logprobs": 21}, UserError, "^max_logprobs is 21; it must be from 0 to 20"),
        ({"max_model_len": "long"}, TypeError, "max_model_len is 'long'"),
        ({"max_model_len": 1}, ValueError, "^max_model_len is 1"),
        (
            {"max_model_len": 2048, "num_gpu_blocks_override": 2},
            ValueError,
            "^max_model_len is 2048; .* kv_cache_memory_bytes .* or num_gpu_blocks_override",
        ),
        ({"num_gpu_blocks_override": 10**9}, ValueError, "^num_gpu_blocks_override .* block_size"),
        ({"gpu_memory_utilization": 2.0}, ValueError, "gpu_memory_utilization is 2"),
        ({"kv_cache_memory_bytes": 100}, ValueError, "take 100 bytes, but one block of 64 tokens"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        LLM(TINY_TALES, **options)


def test_invalid_models(tmp_path: Any) -> None:
    with pytest.raises(UserError, match="neither a folder nor in the cache"):
        LLM("org/no-such-model", local_files_only=True)
    with pytest.raises(UserError, match="no such folder"):
        LLM("/no/such/folder")
    with pytest.raises(UserError, match="config.json"):
        LLM(tmp_path)
    with pytest.raises(TypeError):
        LLM(3)  # type: ignore[arg-type]


def test_a_folder_without_tokenizer_works_with_ids() -> None:
    with LLM(ROOT / "tests/variants/qwen2", **SMALL) as llm:
        for call in (llm.tokenizer.encode, lambda text: llm.generate([text])):
            with pytest.raises(UserError, match="tokenizer.json"):
                call("Once")
        with pytest.raises(UserError, match="template"):
            llm.tokenizer.apply_chat_template([{"role": "user", "content": "Once"}])


def test_after_exit_every_use_is_a_typed_error() -> None:
    llm = LLM(TINY_TALES, **SMALL)
    endless = SamplingParams(ignore_eos=True)  # an answer that has ended would be a StopIteration
    stream, ahead = llm.stream("Once", endless), llm.stream("There", endless)
    next(stream)
    for _ in range(5):  # the steps of the other stream add pieces to the first one's inbox
        next(ahead)
    next(stream)
    for _ in range(5):
        next(ahead)
    llm.add_request("Once")
    llm.exit()
    llm.exit()
    calls = [
        lambda: llm.generate(["Once"], use_tqdm=False),
        lambda: llm.generate([], use_tqdm=False),
        lambda: llm.step(),
        lambda: llm.is_finished(),
        lambda: next(stream),
        lambda: next(ahead),
        lambda: next(llm.stream("Once")),
        lambda: llm.add_request("Once"),
        lambda: llm.abort(0),
        lambda: llm.generate(["Once"], stream=True),
        lambda: llm.stream("Once"),
        lambda: llm.chat([{"role": "user", "content": "Hi"}]),
        lambda: llm.stats(),
        lambda: llm.reset_prefix_cache(),
        lambda: llm.get_default_sampling_params(),
        lambda: llm.max_model_len,
        lambda: llm.vocab_size,
        lambda: llm.__enter__(),
    ]
    for call in calls:
        with pytest.raises(EngineDead, match="exit"):
            call()
    assert issubclass(EngineDead, RuntimeError) and issubclass(UserError, ValueError)
    assert llm.tokenizer.decode(llm.tokenizer.encode("Once")) == "Once"


def test_step_after_exit_is_an_error_with_nothing_added() -> None:
    llm = LLM(TINY_TALES, **SMALL)
    assert llm.step() == ([], 0)
    llm.exit()
    with pytest.raises(EngineDead, match="exit"):
        llm.step()
