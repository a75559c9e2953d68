"""Wrong input raises a clear error, and other requests are not affected."""

from pathlib import Path
from typing import Any

import numpy as np
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
        ("max_tokens", 2**70, UserError),
        ("max_tokens", -(2**70), UserError),
        ("temperature", 10**400, UserError),
        ("logprobs", 2**70, UserError),
        ("stop_token_ids", [2**40], UserError),
        ("stop_token_ids", [True], TypeError),
        ("stop_token_ids", ["5"], TypeError),
        ("allowed_token_ids", [2**40], UserError),
        ("logit_bias", {2**40: 1.0}, UserError),
        ("logit_bias", {True: 1.0}, TypeError),
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
        ("seed", 2**64, UserError),
        ("seed", True, TypeError),
        ("temperature", False, TypeError),
    ],
)
def test_sampling_params_say_what_is_wrong(field: str, value: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=field):
        SamplingParams(**{field: value})


def test_a_number_that_is_too_large_names_the_range() -> None:
    with pytest.raises(
        UserError, match=f"^max_tokens is {2**70}; it must be from 1 to 2147483647$"
    ):
        SamplingParams(max_tokens=2**70)
    with pytest.raises(
        UserError, match="^seed is .*; it must be a whole number of at most 64 bits$"
    ):
        SamplingParams(seed=2**64)
    with pytest.raises(
        UserError, match="^stop_token_ids contains .*; a token id is from 0 to 2147"
    ):
        SamplingParams(stop_token_ids=[3, 2**40])
    with pytest.raises(UserError, match="^max_num_seqs is .*; it must be from 1 to 65536$"):
        LLM(TINY_TALES, max_num_seqs=2**64)


@pytest.mark.parametrize(
    "arguments, kind, reason",
    [
        ({"use_beam_search": True}, UserError, "^use_beam_search=True is not supported"),
        ({"best_of": 3}, UserError, "^best_of=3 is not supported"),
        ({"best_of": 3, "n": 2}, UserError, "^best_of=3 is not supported"),
        ({"length_penalty": 0.5}, UserError, "^length_penalty=0.5 is not supported"),
        ({"guided_decoding": {}}, UserError, "^structured_outputs has no form"),
        ({"structured_outputs": {"choice": "a"}}, UserError, "^structured_outputs has a wrong choice"),
        ({"structured_outputs": 5}, TypeError, "^structured_outputs is 5; it must be "),
        ({"temprature": 0.5}, TypeError, "no argument 'temprature'; did you mean 'temperature'.$"),
        ({"beams": 5}, TypeError, "^SamplingParams has no argument 'beams'$"),
    ],
)
def test_wrong_sampling_params_are_named(
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
        ([2**40], UserError, "a prompt contains 1099511627776; a token id is from 0 to 2147483647"),
        ([True], TypeError, "token ids"),
        ([5, False], TypeError, "token ids"),
        ([1.5], TypeError, "token ids"),
        (["a"], TypeError, "token ids"),
        ([[1]], TypeError, "token ids"),
        (7, TypeError, "token ids"),
        (None, TypeError, "token ids"),
        ({"text": "Once"}, TypeError, "the key 'text'; .*'prompt_token_ids'"),
        ({"prompt": "Once", "multi_modal_data": 1}, TypeError, "the key 'multi_modal_data'; "),
        ({"prompt": "Once", "cache_salt": 5}, TypeError, "cache_salt is 5; it must be a string"),
        ({5: 6}, TypeError, "the key 5; .*'prompt_token_ids'"),
        ({}, TypeError, "without a prompt.*'prompt_token_ids'"),
        ({"prompt": None}, TypeError, "without a prompt.*'prompt_token_ids'"),
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
    for count in (0, 1, 3):
        with pytest.raises(UserError, match=f"2 prompts and {count} SamplingParams"):
            llm.generate(["a", "b"], [SamplingParams()] * count)
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
        llm.generate(["Once"], lora_request="x")  # type: ignore[arg-type]
    assert len(llm.generate(["a", "b"], SamplingParams(max_tokens=1), priority=[1, 0])) == 2
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
    for kind in ("auto", "string"):
        neutral: Any = {"chat_template_content_format": kind, "mm_processor_kwargs": None}
        assert len(llm.chat(chat, SamplingParams(max_tokens=1), False, **neutral)) == 1
    with pytest.raises(TypeError, match="the key 'a'"):
        llm.generate({"a": "Once", "b": "There"})
    for wrong in ({}, 0, False):
        with pytest.raises(TypeError, match="^sampling_params is .*; it must be SamplingParams"):
            next(llm.stream("Once", wrong))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="^sampling_params is .*; it must be SamplingParams"):
            llm.add_request("Once", wrong)  # type: ignore[arg-type]
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
    for missing in (10**6, -1, 2**64, "1000000", "-1", "chatcmpl-1"):
        assert not llm.abort(missing)
    with pytest.raises(TypeError):
        llm.abort(1.5)  # type: ignore[arg-type]
    still_right(llm)


def test_abort_takes_the_id_of_an_output_too() -> None:
    endless = SamplingParams(max_tokens=None, ignore_eos=True)
    with LLM(TINY_TALES, **SMALL) as llm:
        ids = [llm.add_request("Once", endless) for _ in range(2)]
        llm.step()
        assert llm.abort(ids[0]) and llm.abort(str(ids[1]))
        assert not llm.abort(ids[0])
        ended = [request_id for _ in range(3) for request_id, _ in llm.step()[0]]
        assert sorted(ended) == ids and llm.is_finished()


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
    user: dict[str, Any] = {"role": "user", "content": [{"type": "text"}]}
    chats = [[{"role": "user", "content": "Hi"}], [user]]
    with pytest.raises(UserError, match='^conversation 1 of 2: .*type "text"'):
        llm.chat(chats)
    still_right(llm)


@pytest.mark.parametrize(
    "name, suggestion",
    [
        ("max_seqs", "; did you mean 'max_num_seqs'"),
        ("chunked_prefill", ""),
    ],
)
def test_an_unknown_option_is_named_with_one_that_is_near(name: str, suggestion: str) -> None:
    text = f"LLM has no option '{name}', which is ignored{suggestion}"
    with pytest.warns(UserWarning, match=f"{text}.?$") as warned:
        LLM(TINY_TALES, max_model_len=64, **{name: 3}).exit()  # type: ignore[arg-type]
    assert len(warned) == 1 and warned[0].filename == __file__


@pytest.mark.parametrize("length", [4096, np.int64(4096)])
def test_a_context_above_the_model_s_is_lowered_with_a_warning(length: Any) -> None:
    with pytest.warns(UserWarning, match="max_model_len 4096 is lowered.*2048") as warned:
        llm = LLM(TINY_TALES, max_model_len=length, **SMALL)
    assert len(warned) == 1 and warned[0].filename == __file__
    with llm:
        assert llm.max_model_len == 2048


def test_options_of_vllm_that_change_nothing_are_accepted(
    recwarn: pytest.WarningsRecorder,
) -> None:
    neutral: dict[str, Any] = {
        "tokenizer": Path(TINY_TALES),
        "override_generation_config": {},
        "kv_transfer_config": None,
        "hf_config_path": None,
        "logits_processors": [],
        "generation_config": "auto",
        "distributed_executor_backend": "mp",
        "model_impl": "auto",
        "config_format": "hf",
        "compilation_config": {"level": 3},
        "served_model_name": "tales",
        "seed": None,
        "max_model_len": None,
        "rope_scaling": None,
        "max_num_seqs": None,
        "block_size": 32,
        "kvcache_block_size": 32,
    }
    with LLM(TINY_TALES, **SMALL, **neutral) as llm:
        still_right(llm)
        assert llm.get_default_sampling_params().top_k == 20
    assert not recwarn.list


def test_the_checkpoint_s_sampling_values_can_be_ignored_and_replaced(tmp_path: Path) -> None:
    own = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    (tmp_path / "generation_config.json").write_text('{"top_k": 7, "min_p": 0.5}')
    more = {"temperature": 0.25, "max_new_tokens": 9}
    for options, values in (
        ({}, own),
        ({"generation_config": "vllm"}, {}),
        ({"override_generation_config": more}, own | {"temperature": 0.25, "max_tokens": 9}),
        ({"override_generation_config": {"top_p": None}}, {"temperature": 0.6, "top_k": 20}),
        ({"generation_config": tmp_path}, {"top_k": 7, "min_p": 0.5}),
        (
            {"generation_config": "vllm", "override_generation_config": {"min_p": 0.1}},
            {"min_p": 0.1},
        ),
    ):
        with LLM(TINY_TALES, **SMALL, **options) as llm:  # type: ignore[arg-type]
            expected = SamplingParams(**{"max_tokens": None, **values})  # type: ignore[arg-type]
            assert llm.get_default_sampling_params() == expected


def test_options_of_vllm_without_an_effect_are_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO", logger="nanovllm"):
        LLM(TINY_TALES, **SMALL, swap_space=4, enable_expert_parallel=True).exit()
    expected = "these options of vLLM have no effect here: swap_space, enable_expert_parallel"
    assert [record.getMessage() for record in caplog.records] == [expected]


def test_values_that_vllm_spells_in_another_way() -> None:
    options: dict[str, Any] = {"max_model_len": "auto", "revision": "main", "max_logprobs": 3}
    with LLM(TINY_TALES, kv_cache_dtype="fp8_e4m3", max_num_seqs=1, **options) as llm:
        assert llm.max_model_len == 2048
        with pytest.raises(UserError, match="^logprobs is 4; it must be at most max_logprobs, 3"):
            llm.generate(["Once"], SamplingParams(logprobs=4))
    overrides = {"max_position_embeddings": 4096}
    with LLM(TINY_TALES, max_model_len=4096, max_num_seqs=1, hf_overrides=overrides) as llm:
        assert llm.max_model_len == 4096


@pytest.mark.parametrize(
    "options, kind, reason",
    [
        ({"dtype": "int3"}, ValueError, "dtype is 'int3'"),
        ({"device": 3}, TypeError, "device is 3"),
        ({"device": "gpu"}, UserError, "^device is 'gpu'; it must be one of auto, cpu, cuda$"),
        ({"tokenizer": "other"}, UserError, "^tokenizer='other' is not supported"),
        (
            {"override_generation_config": {"eos_token_id": 1}},
            UserError,
            '^override_generation_config: "eos_token_id" is not one of temperature, ',
        ),
        (
            {"override_generation_config": {"top_p": 7}},
            UserError,
            "^override_generation_config: top_p is 7",
        ),
        (
            {"kv_transfer_config": {"kv_connector": "x"}},
            UserError,
            "^kv_transfer_config={'kv_connector': 'x'} is not supported: the KV cache cannot",
        ),
        ({"hf_config_path": "x"}, UserError, "^hf_config_path='x' is not supported"),
        ({"logits_processors": ["x"]}, UserError, "^logits_processors=\\['x'\\] is not supported"),
        ({"generation_config": "x"}, UserError, "^generation_config is 'x'; .* auto, vllm, or a"),
        (
            {"block_size": 32, "kvcache_block_size": 64},
            UserError,
            "^block_size is 32 and kvcache_block_size is 64; they are names of one option",
        ),
        ({"rope_scaling": 3}, TypeError, "^rope_scaling is 3; it must be a dictionary or its JSON"),
        ({"hf_overrides": dict}, TypeError, "^hf_overrides is <class 'dict'>; .* its JSON"),
        ({"rope_scaling": {"factor": dict}}, TypeError, "^rope_scaling cannot be written as JSON"),
        ({"quantization": "awq"}, UserError, "^the checkpoint is not quantized with awq; leave qu"),
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
        (
            {"speculative_config": {"method": "ngram"}},
            UserError,
            "^speculative_config={'method': 'ngram'} is not supported",
        ),
        ({"cpu_offload_gb": 4}, UserError, "^cpu_offload_gb=4 is not supported: weights stay"),
        ({"distributed_executor_backend": "ray"}, UserError, "^distributed_.*='ray' is not supp"),
        ({"kv_cache_dtype": "fp8_e5m2"}, UserError, "^kv_cache_dtype is 'fp8_e5m2'"),
        ({"revision": "v2"}, UserError, "is not an id of the hub, so it has no revision 'v2'"),
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
    for wrong in (3, None):
        with pytest.raises(TypeError, match=f"^model is {wrong}; it must be the path of a check"):
            LLM(wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="^model is empty; it must be a checkpoint folder"):
        LLM("")


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
