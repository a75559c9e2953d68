"""What generate and chat return: dictionaries with nano-vLLM's keys and vLLM's attributes."""

import copy
import json
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import GREEDY, TINY_TALES, goldens

from nanovllm import LLM, Logprob, RequestOutput, SamplingParams, TextPrompt, TokensPrompt

CHAT = [{"role": "user", "content": "introduce yourself"}]


def one(llm: LLM, prompt: Any = "Once upon", **params: Any) -> RequestOutput:
    return llm.generate(prompt, SamplingParams(**params), use_tqdm=False)[0]


def test_an_output_has_vllm_s_attributes(llm: LLM) -> None:
    before = time.time()
    output = one(llm, max_tokens=5, n=2, seed=3, temperature=2, ignore_eos=True)
    assert output.prompt == "Once upon" and output.finished and output.request_id.isdecimal()
    assert (
        output.prompt_token_ids == output["prompt_token_ids"] == llm.tokenizer.encode("Once upon")
    )
    assert output.num_cached_tokens == output["num_cached_tokens"]
    assert output.prompt_logprobs is None and output.error is None
    metrics = output.metrics
    assert metrics.first_token_time is not None
    times = [before, metrics.arrival_time, metrics.first_token_time, metrics.finished_time]
    assert times == sorted(times) and times[-1] <= time.time()
    assert [answer.index for answer in output.outputs] == [0, 1]
    for answer in output.outputs:
        assert answer.text == answer["text"] and answer.token_ids == answer["token_ids"]
        assert answer.finish_reason == "length" and answer.stop_reason is None
        assert answer.logprobs is None and answer.cumulative_logprob is None and answer.finished()
    first = output.outputs[0]
    assert (output.text, output.token_ids, output.finish_reason) == (
        first.text,
        first.token_ids,
        first.finish_reason,
    )
    assert first != output.outputs[1]


def test_an_output_is_a_plain_dictionary_too(llm: LLM) -> None:
    output = one(llm, max_tokens=3, logprobs=1, prompt_logprobs=0)
    assert list(output["outputs"]) == output.outputs and len(output.outputs) == 1
    assert set(output) - set(output.outputs[0]) == {
        "index",
        "prompt_token_ids",
        "num_cached_tokens",
        "prompt_logprobs",
        "outputs",
    }
    plain = json.loads(json.dumps(output))
    assert type(plain) is dict and output == plain and repr(output) == repr(dict(output))
    for twin in (pickle.loads(pickle.dumps(output)), copy.copy(output), copy.deepcopy(output)):
        assert type(twin) is RequestOutput and twin == output
        assert twin.metrics == output.metrics and twin.prompt == "Once upon"
        assert twin.outputs[0].logprobs == output.outputs[0].logprobs
        assert twin.prompt_logprobs == output.prompt_logprobs


def test_logprobs_are_read_in_both_ways(llm: LLM) -> None:
    output = one(llm, temperature=2, seed=1, max_tokens=8, logprobs=2, prompt_logprobs=2)
    (answer,) = output.outputs
    assert answer.logprobs is not None and output.prompt_logprobs is not None
    assert output.logprobs == answer.logprobs
    assert len(answer.logprobs) == len(answer.token_ids)
    for token, entries, by_id in zip(answer.token_ids, answer["logprobs"], answer.logprobs):
        assert next(iter(by_id)) == entries[0]["id"] == token
        assert {entry["id"] for entry in entries} == set(by_id)
        for entry in entries:
            text = llm.tokenizer.decode(entry["id"])
            assert by_id[entry["id"]] == Logprob(entry["logprob"], entry["rank"], text)
    total = sum(by_id[token].logprob for token, by_id in zip(answer.token_ids, answer.logprobs))
    assert answer.cumulative_logprob == pytest.approx(total)
    assert output.prompt_logprobs[0] is None
    for token, found in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:]):
        assert found is not None and found[token].decoded_token == llm.tokenizer.decode(token)


def test_without_a_tokenizer_texts_are_empty(tmp_path: Any) -> None:
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(f"{TINY_TALES}/{name}")
    with LLM(tmp_path, max_model_len=64, max_num_seqs=4) as llm:
        output = one(llm, [5, 6], max_tokens=2, logprobs=0, ignore_eos=True)
        assert output.prompt is None and output.text == "" and output.logprobs is not None
        assert [lp.decoded_token for by_id in output.logprobs for lp in by_id.values()] == [
            None
        ] * 2
        assert llm.tokenizer.eos_token_id is None


def test_text_with_special_tokens_is_the_decoded_token_ids(llm: LLM) -> None:
    """nano-vLLM's text: it includes the end token."""
    rows = [row for row in goldens() if row["finish_reason"] == "stop"]
    params = SamplingParams(temperature=0, max_tokens=64, skip_special_tokens=False)
    for row, output in zip(
        rows, llm.generate([r["prompt_token_ids"] for r in rows], params, False)
    ):
        assert output.text == llm.tokenizer.decode(output.token_ids)
        assert output.text.endswith("<|im_end|>") or output.text.endswith("<|endoftext|>")
        assert llm.tokenizer.decode(output.token_ids, skip_special_tokens=True) == row["text"]
    assert rows
    output = one(llm, max_tokens=40, skip_special_tokens=False, detokenize=False)
    assert output.text == "" and output.token_ids


def test_every_form_of_prompts_gives_the_same(llm: LLM) -> None:
    row = next(row for row in goldens() if "prompt" in row)
    text, ids = row["prompt"], row["prompt_token_ids"]
    singles: list[Any] = [
        text,
        ids,
        tuple(ids),
        np.array(ids),
        list(np.array(ids)),
        TextPrompt(prompt=text),
        TokensPrompt(prompt_token_ids=ids),
        TokensPrompt(prompt_token_ids=np.array(ids), prompt="a label"),
    ]
    for single in singles:
        (output,) = llm.generate(single, GREEDY, use_tqdm=False)
        assert output["token_ids"] == row["greedy_token_ids"]
    assert output.prompt == "a label"
    several: list[Any] = [
        [text, text],
        (prompt for prompt in (text, ids)),
        iter([ids, ids]),
        np.array([ids, ids]),
        (TokensPrompt(prompt_token_ids=ids) for _ in range(2)),
    ]
    for prompts in several:
        outputs = llm.generate(prompts, iter([GREEDY] * 2), use_tqdm=False)
        assert [o["token_ids"] for o in outputs] == [row["greedy_token_ids"]] * 2
        assert [o["index"] for o in outputs] == [0, 1]
    for given in (ids, [ids], np.array(ids), np.array([ids])):
        (output,) = llm.generate(sampling_params=GREEDY, prompt_token_ids=given, use_tqdm=False)
        assert output["token_ids"] == row["greedy_token_ids"] and output.prompt is None


def test_pieces_of_several_prompts_and_choices_name_their_place(llm: LLM) -> None:
    params = SamplingParams(max_tokens=12, n=2, seed=5, ignore_eos=True)
    texts = {(i, c): "" for i in range(3) for c in range(2)}
    outputs: dict[int, RequestOutput] = {}
    for piece in llm.generate(["Once", "There", "A fox"], params, stream=True):
        assert piece.token_ids == piece["token_ids"] and piece.output == piece["output"]
        texts[piece.index, piece.choice] += piece.text
        if piece.output is not None:
            outputs[piece.output["index"]] = piece.output
    assert sorted(outputs) == [0, 1, 2]
    assert texts == {(i, c): outputs[i].outputs[c].text for i in range(3) for c in range(2)}
    assert outputs[2].prompt == "A fox"


def test_pieces_say_what_ended_an_answer_and_have_log_probabilities(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=2, stop=" was", n=2)
    pieces = list(llm.stream("Once upon", params))
    (output,) = (piece.output for piece in pieces if piece.output is not None)
    for choice, answer in enumerate(output.outputs):
        own = [piece for piece in pieces if piece.choice == choice]
        assert [piece.finish_reason for piece in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1].finish_reason == own[-1]["finish_reason"] == "stop"
        assert own[-1].stop_reason == own[-1]["stop_reason"] == answer.stop_reason == " was"
        assert [p for piece in own for p in piece["logprobs"]] == answer["logprobs"]
        assert [p for piece in own for p in piece.logprobs or []] == answer.logprobs
    (piece,) = llm.stream("Once", SamplingParams(max_tokens=1, ignore_eos=True))
    assert piece.finish_reason == "length" and piece.stop_reason is None
    assert piece.logprobs is None and "logprobs" not in piece


def test_prompts_share_the_cache_only_if_their_salts_are_equal(llm: LLM) -> None:
    def cached(salt: str) -> int:
        prompt = TokensPrompt(prompt_token_ids=list(range(300, 430)), cache_salt=salt)
        (output,) = llm.generate(prompt, SamplingParams(max_tokens=1), use_tqdm=False)
        return output.num_cached_tokens

    assert [cached("a"), cached("a"), cached("b"), cached("b")] == [0, 128, 0, 128]


def test_chat_renders_the_template_and_uses_the_checkpoint_s_values(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=24)
    (output,) = llm.chat(CHAT, params, use_tqdm=False)
    ids = llm.tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)
    assert output.prompt_token_ids == ids
    assert output.prompt == llm.tokenizer.apply_chat_template(
        CHAT, add_generation_prompt=True, tokenize=False
    )
    both = llm.chat([CHAT, [*CHAT, *CHAT]], params, use_tqdm=False)
    assert both[0].token_ids == output.token_ids and len(both) == 2
    pieces = llm.chat(CHAT, params, stream=True)
    assert "".join(piece.text for piece in pieces) == output.text
    (silent,) = llm.chat(CHAT, params, False, chat_template_kwargs={"enable_thinking": False})
    assert silent.prompt is not None and silent.prompt.endswith("</think>\n\n")
    (begun,) = llm.chat(
        [*CHAT, {"role": "assistant", "content": "I am"}],
        params,
        use_tqdm=False,
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert begun.prompt is not None and begun.prompt.endswith("I am")
    template = "{{ eos_token }}{{ messages[0].content }}{{ tools | length }}!"
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    (other,) = llm.chat(CHAT, params, False, template, tools=[tool])
    assert other.prompt == "<|im_end|>introduce yourself1!"

    usual = llm.get_default_sampling_params()
    assert usual == SamplingParams(temperature=0.6, top_k=20, top_p=0.95, max_tokens=None)
    assert llm.get_default_sampling_params() is not usual
    for wrong in ("Hi", CHAT[0], 5, ["Hi"], [None], [[None]], [CHAT, None], [*CHAT, "Hi"]):
        with pytest.raises(TypeError, match="list of messages"):
            llm.chat(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="chat_template, line 1"):
        llm.chat(CHAT, chat_template="{% if %}")
    assert llm.chat([]) == []


def test_stats_count_and_the_prefix_cache_can_be_emptied(llm: LLM) -> None:
    prompt = list(range(100, 230))
    one(llm, prompt, max_tokens=1)
    assert one(llm, prompt, max_tokens=1).num_cached_tokens == 128
    before = llm.stats()
    assert llm.reset_prefix_cache()
    assert one(llm, prompt, max_tokens=3, ignore_eos=True).num_cached_tokens == 0
    after = llm.stats()
    assert after.prefill_tokens - before.prefill_tokens == len(prompt)
    assert after.decode_tokens - before.decode_tokens >= 2 and after.steps > before.steps
    assert after.prefix_hits == before.prefix_hits
    assert 0 <= after.num_free_blocks <= after.num_blocks
    assert after._asdict()["num_running"] == 0


def test_step_counts_the_tokens_of_prompts_and_decodes(llm: LLM) -> None:
    """A step that computes both returns their sum: no token is missing in the sum of all steps."""
    before = llm.stats()
    counts = []
    llm.add_request([5, 6, 7], SamplingParams(max_tokens=12, ignore_eos=True))
    for _ in range(4):
        counts.append(llm.step()[1])
    llm.add_request([5] * 30, SamplingParams(max_tokens=2, ignore_eos=True))  # beside decodes
    while not llm.is_finished():
        counts.append(llm.step()[1])
    after = llm.stats()
    assert counts[0] == 3 and counts[1] == -1 and max(counts) == 31
    computed = [after[i] - before[i] for i in (1, 2)]
    assert sum(map(abs, counts)) == sum(computed) and computed[0] == 33


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_logprobs_mode(mode: str) -> None:
    options: dict[str, Any] = {"max_model_len": 64, "max_num_seqs": 1, "logprobs_mode": mode}
    with LLM(TINY_TALES, **options) as llm:
        output = one(llm, temperature=0.5, max_tokens=1, logprobs=1, allowed_token_ids=[300])
        total = output.outputs[0].cumulative_logprob
        assert total is not None and (total == 0) == (mode == "processed_logprobs")


def test_a_trace_has_the_steps(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    with LLM(TINY_TALES, max_model_len=64, max_num_seqs=1, trace=str(file)) as llm:
        one(llm, max_tokens=3, ignore_eos=True)
        stats = llm.stats()
    assert json.loads(file.read_text())
    assert stats.generated_tokens == 3 and stats.blocks_taken > 0 and stats.device_seconds > 0


def test_seeds() -> None:
    """In float32 on the CPU a seed gives the same tokens alone and in a batch; -1 means no seed."""
    with LLM(TINY_TALES, device="cpu", dtype="float32", kv_cache_memory_bytes=64 << 20) as llm:
        params = [SamplingParams(max_tokens=24, ignore_eos=True, seed=i) for i in range(40)]
        together = llm.generate(["Once"] * 40, params, use_tqdm=False)
        for i in (0, 7, 39):
            assert one(llm, "Once", max_tokens=24, ignore_eos=True, seed=i) == together[i] | {
                "index": 0
            }
        unseeded = [one(llm, max_tokens=24, ignore_eos=True, seed=-1).token_ids for _ in range(2)]
        assert unseeded[0] != unseeded[1]
