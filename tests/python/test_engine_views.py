"""nanovllm.engine and nanovllm.config: the scheduler by hand; modules without a counterpart."""

import gc
import importlib
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from conftest import ROOT, TINY_TALES

from nanovllm import LLM, SamplingParams, UserError
from nanovllm._absent import _ABSENT
from nanovllm.config import Config
from nanovllm.engine.block_manager import BlockManager
from nanovllm.engine.llm_engine import LLMEngine
from nanovllm.engine.scheduler import Scheduler
from nanovllm.engine.sequence import Sequence, SequenceStatus

PREFIX = list(range(1, 9))  # two blocks


def scheduler_of(num_blocks: int = 8, **options: int) -> Scheduler:
    return Scheduler(Config(num_kvcache_blocks=num_blocks, kvcache_block_size=4, **options))


def sequence(token_ids: list[int], max_tokens: int = 8) -> Sequence:
    return Sequence(token_ids, SamplingParams(max_tokens=max_tokens, ignore_eos=True))


def step(scheduler: Scheduler, token: int = 7) -> list[Sequence]:
    seqs, is_prefill = scheduler.schedule()
    scheduler.postprocess(seqs, [token] * len(seqs), is_prefill)
    return seqs


def test_nano_vllms_loop_runs_every_sequence_to_its_end() -> None:
    scheduler = Scheduler(Config(num_kvcache_blocks=16, kvcache_block_size=4, eos=0))
    assert scheduler.eos == 0 and scheduler_of().eos == -1
    ends = Sequence([5, 6, 7])
    seqs = [ends, *(sequence([n] * n, max_tokens=n) for n in range(1, 6))]
    for seq in seqs:
        scheduler.add(seq)
    assert scheduler.waiting == seqs and not scheduler.running
    num_steps = 0
    while not scheduler.is_finished():
        seqs_of_step, is_prefill = scheduler.schedule()
        assert is_prefill == (num_steps == 0)
        token_ids = [0 if seq is ends and num_steps == 2 else 9 for seq in seqs_of_step]
        scheduler.postprocess(seqs_of_step, token_ids, is_prefill)
        num_steps += 1
    assert num_steps == 5 and scheduler.stats["steps"] == 5
    assert ends.completion_token_ids == [9, 9, 0]
    for n, seq in enumerate(seqs[1:], 1):
        assert (seq.prompt_token_ids, seq.completion_token_ids) == ([n] * n, [9] * n)
        assert (seq.num_tokens, len(seq), seq[-1], seq.last_token) == (2 * n, 2 * n, 9, 9)
        assert seq.status == SequenceStatus.FINISHED and seq.is_finished and seq.block_table == []
    assert len(scheduler.block_manager.free_block_ids) == 16


def test_sequences_with_a_common_prefix_share_its_blocks() -> None:
    scheduler = scheduler_of()
    first, second = sequence(PREFIX + [20]), sequence(PREFIX + [30])
    scheduler.add(first)
    step(scheduler)
    scheduler.add(second)
    (decode, prefill), is_prefill = scheduler.schedule()  # a mixed step
    assert is_prefill and decode is first and prefill is second
    assert (first.num_scheduled_tokens, second.num_scheduled_tokens) == (1, 1)
    assert second.num_cached_tokens == 8 and second.num_cached_blocks == 2
    assert first.block_table[:2] == second.block_table[:2]
    manager = scheduler.block_manager
    assert [manager.blocks[i].ref_count for i in first.block_table] == [2, 2, 1]
    assert manager.used_block_ids == {*first.block_table, *second.block_table}
    hash_ = BlockManager.compute_hash(PREFIX[:4])
    assert manager.hash_to_block_id[hash_] == first.block_table[0]
    assert manager.blocks[first.block_table[0]].token_ids == PREFIX[:4] == first.block(0)
    second_hash = BlockManager.compute_hash(PREFIX[4:], hash_)
    assert manager.blocks[first.block_table[1]].hash == second_hash
    assert manager.blocks[first.block_table[2]].hash == -1
    scheduler.postprocess([decode, prefill], [1, 1])
    scheduler.abort(first)
    assert first.is_finished and scheduler.running == [second]
    assert manager.blocks[second.block_table[0]].ref_count == 1


def test_without_prefix_caching_nothing_is_shared() -> None:
    scheduler = scheduler_of(enable_prefix_caching=False)
    for _ in range(2):
        scheduler.add(sequence(PREFIX))
    step(scheduler)
    assert scheduler.stats["prefix_hits"] == 0
    assert len(scheduler.block_manager.used_block_ids) == 4


def test_the_newest_sequence_is_preempted_and_finds_its_blocks_again() -> None:
    scheduler = scheduler_of(5)
    old, new = sequence([1] * 8, 12), sequence([2] * 8, 12)
    scheduler.add(old)
    scheduler.add(new)
    while not scheduler.stats["preemptions"]:
        step(scheduler)
    assert (old.status, new.status) == (SequenceStatus.RUNNING, SequenceStatus.WAITING)
    assert new.block_table == [] and scheduler.waiting == [new]
    known = new.completion_token_ids
    while not scheduler.is_finished():
        step(scheduler)
    assert new.completion_token_ids[: len(known)] == known
    assert len(old.completion_token_ids) == len(new.completion_token_ids) == 12


def test_a_long_prompt_is_computed_in_chunks_beside_decodes() -> None:
    scheduler = scheduler_of(max_num_batched_tokens=4, max_num_seqs=2)
    short, long = sequence([1, 2]), sequence(list(range(10, 19)))
    scheduler.add(short)
    step(scheduler)
    scheduler.add(long)
    sizes = []
    while not long.completion_token_ids:
        seqs, is_prefill = scheduler.schedule()
        assert seqs == [short, long] and is_prefill
        sizes.append((short.num_scheduled_tokens, long.num_scheduled_tokens))
        scheduler.postprocess(seqs, [7, 8], is_prefill)
    assert sizes == [(1, 3)] * 3
    assert long.completion_token_ids == [8]


def test_log_probabilities_of_a_prompt_are_no_drawn_tokens() -> None:
    scheduler = scheduler_of(max_num_batched_tokens=6, max_num_seqs=2)
    seq = Sequence(PREFIX, SamplingParams(max_tokens=3, ignore_eos=True, prompt_logprobs=0))
    scheduler.add(seq)
    while not scheduler.is_finished():
        step(scheduler, 9)
    assert seq.completion_token_ids == [9] * 3


def test_a_step_may_be_scheduled_before_the_last_one_is_postprocessed() -> None:
    scheduler = scheduler_of()
    scheduler.add(sequence([1, 2, 3], 3))
    seqs, _ = scheduler.schedule()
    assert scheduler.schedule() == (seqs, False)
    with pytest.raises(UserError, match="two steps are in flight"):
        scheduler.schedule()
    scheduler.postprocess(seqs, [4])
    scheduler.postprocess(seqs, [5])
    assert seqs[0].completion_token_ids == [4, 5]
    step(scheduler)
    assert seqs[0].is_finished and scheduler.schedule() == ([], False)


def test_a_block_manager_alone() -> None:
    manager = BlockManager(4, block_size=4)
    first, second = Sequence(PREFIX), Sequence(PREFIX + [9])
    assert manager.can_allocate(first)
    manager.allocate(first)
    manager.allocate(second)
    assert (second.num_cached_tokens, second.num_blocks, second.last_block_num_tokens) == (8, 3, 1)
    assert second.block_table[:2] == first.block_table
    first.append_token(10)
    assert manager.can_append(first)
    manager.may_append(first)
    assert len(first.block_table) == 3 and manager.free_block_ids == []
    for _ in range(3):
        first.append_token(11)
    assert manager.blocks[first.block_table[2]].hash == -1
    manager.hash_blocks(first)
    assert manager.blocks[first.block_table[2]].token_ids == [10, 11, 11, 11]
    first.append_token(11)
    assert not manager.can_append(first)
    with pytest.raises(UserError, match="none is free"):
        manager.may_append(first)
    manager.deallocate(second)
    assert len(manager.free_block_ids) == 1
    manager.may_append(first)
    manager.deallocate(first)
    assert sorted(manager.free_block_ids) == [0, 1, 2, 3]
    third = Sequence(PREFIX)
    manager.allocate(third)  # a free block keeps its content until it is reused
    assert third.num_cached_tokens == 7  # the last token is computed again, for its logits
    manager.reset_prefix_cache()
    assert manager.hash_to_block_id == {}


def test_a_sequence_is_read_as_a_list_of_ids() -> None:
    seq = Sequence([5, 6, 7, 8, 9])
    assert (seq[0], seq[4], seq[-1], seq[-5], len(seq)) == (5, 9, 9, 5, 5)
    assert (seq[1:3], seq[:], seq[::-2], seq[7:]) == ([6, 7], [5, 6, 7, 8, 9], [9, 7, 5], [])
    assert list(seq) == seq.token_ids and 8 in seq and 4 not in seq
    iterator = iter(seq)
    del seq
    gc.collect()
    assert [next(iterator), *iterator] == [5, 6, 7, 8, 9]
    for wrong in (5, -6):
        with pytest.raises(IndexError):
            Sequence([5, 6, 7, 8, 9])[wrong]
    with pytest.raises(TypeError):
        Sequence([5])["a"]  # type: ignore[call-overload]


def test_the_class_s_block_size_is_that_of_its_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """nano-vLLM's LLMEngine sets it."""
    assert Sequence(PREFIX).block_size == 64
    monkeypatch.setattr(Sequence, "block_size", 4)
    seq = Sequence(PREFIX + [9])
    assert (seq.block_size, seq.num_blocks, seq.last_block_num_tokens) == (4, 3, 1)
    assert seq.block(2) == [9]
    scheduler_of().add(seq)
    for use in (BlockManager(4, 8).allocate, Scheduler(Config(num_kvcache_blocks=9)).add):
        with pytest.raises(UserError, match="Sequence.block_size is 4, and the blocks have (8|64)"):
            use(Sequence(PREFIX))
    monkeypatch.setattr(Sequence, "block_size", 0)
    with pytest.raises(UserError, match="block_size is 0"):
        Sequence(PREFIX).num_blocks  # noqa: B018


def test_a_sequence_outlives_its_scheduler() -> None:
    scheduler = scheduler_of()
    running = sequence(PREFIX)
    scheduler.add(running)
    step(scheduler)
    blocks = scheduler.block_manager.blocks
    del scheduler
    gc.collect()
    assert running.token_ids == PREFIX + [7] and running.status == SequenceStatus.RUNNING
    assert [block.ref_count for block in blocks[:3]] == [1, 1, 0]
    with pytest.raises(UserError, match="a scheduler takes prompts"):
        scheduler_of().add(running)


def test_mistakes_are_named() -> None:
    scheduler, seq = scheduler_of(max_model_len=16), sequence(PREFIX)
    with pytest.raises(UserError, match="token_ids is empty"):
        Sequence([])
    with pytest.raises(UserError, match="n is 2"):
        Sequence([1], SamplingParams(n=2))
    with pytest.raises(UserError, match="16 tokens; with max_model_len 16 .* at most 15"):
        scheduler.add(sequence([1] * 16))
    with pytest.raises(UserError, match="num_kvcache_blocks is -1"):
        Scheduler(Config())
    with pytest.raises(UserError, match="block_size is 0"):
        BlockManager(1, 0)
    with pytest.raises(TypeError, match="max_num_seqs"):
        Scheduler(SimpleNamespace(num_kvcache_blocks=4, max_num_seqs="many"))
    with pytest.raises(UserError, match="no step is in flight"):
        scheduler.postprocess([], [])
    scheduler.add(seq)
    for change in (lambda: seq.append_token(1), lambda: scheduler.block_manager.allocate(seq)):
        with pytest.raises(UserError, match="belongs to a scheduler"):
            change()
    with pytest.raises(UserError, match="belongs to a scheduler"):
        scheduler_of().add(seq)
    seqs, _ = scheduler.schedule()
    with pytest.raises(UserError, match="2 token ids and 1 sequences"):
        scheduler.postprocess(seqs, [1, 2])
    with pytest.raises(UserError, match="not that of the oldest step"):
        scheduler.postprocess([sequence(PREFIX)], [1])
    with pytest.raises(UserError, match="not in this scheduler"):
        scheduler_of().abort(seq)
    manager, other = BlockManager(4, 4), Sequence(PREFIX)
    manager.allocate(other)
    for wrong in (manager.allocate, BlockManager(4, 4).deallocate):
        with pytest.raises(UserError, match="blocks"):
            wrong(other)
    hog = Scheduler(Config(num_kvcache_blocks=2, kvcache_block_size=4))
    hog.block_manager.allocate(Sequence([1]))
    hog.add(Sequence([1] * 6))
    with pytest.raises(UserError, match="no sequence can run: 1 wait, and 1 of 2 blocks are free"):
        hog.schedule()


def test_config_has_nano_vllms_fields_and_reads_a_model() -> None:
    config = Config()
    assert (config.max_num_batched_tokens, config.max_num_seqs) == (16384, 512)
    assert (config.max_model_len, config.num_kvcache_blocks, config.eos) == (4096, -1, -1)
    assert config.kvcache_block_size == 64 and config.hf_config is None
    config.num_kvcache_blocks, config.max_num_seqs, config.max_model_len = 100, 3, 15
    scheduler = Scheduler(config)
    assert (scheduler.max_num_seqs, scheduler.max_model_len) == (3, 15)
    config = Config(TINY_TALES, max_num_seqs=4, num_kvcache_blocks=-1)
    assert config.hf_config.model_type == "qwen3" and config.eos == config.hf_config.eos_token_id
    assert config.max_model_len == min(4096, config.hf_config.max_position_embeddings)
    with pytest.raises(TypeError, match="max_seqs"):
        Config(max_seqs=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="max_num_seqs"):
        Config(max_num_seqs="four")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'max_seqs'; did you mean 'max_num_seqs'"):
        Config(max_seqs=1)  # type: ignore[call-arg]
    with pytest.raises(UserError, match="^max_num_seqs is -3; it must be from 1"):
        Config(max_num_seqs=-3)
    with pytest.raises(UserError, match="^kvcache_block_size is 100; it must be a multiple of 16"):
        Config(TINY_TALES, kvcache_block_size=100)
    with pytest.raises(UserError, match="^num_kvcache_blocks is -5"):
        Config(num_kvcache_blocks=-5)
    with pytest.raises(
        UserError, match="^num_kvcache_blocks is 5 and num_gpu_blocks_override is 6"
    ):
        Config(num_kvcache_blocks=5, num_gpu_blocks_override=6)
    assert Config(hf_config=None).hf_config is None
    hf_config = SimpleNamespace(max_position_embeddings=77)
    assert Config(TINY_TALES, hf_config=hf_config).max_model_len == 77
    with pytest.raises(FileNotFoundError, match="no/model"):
        Config("no/model")


def test_nano_vllms_engine_is_llm() -> None:
    assert LLMEngine is LLM


@pytest.mark.parametrize(
    "module",
    [
        "engine.async_llm_engine",
        "engine.model_runner",
        "layers",
        "layers.attention",
        "models.qwen3",
        "utils.context",
    ],
)
def test_a_module_without_a_counterpart_names_the_replacement(module: str) -> None:
    with pytest.raises(ImportError, match="no counterpart in Python: .*from-nano-vllm.md"):
        importlib.import_module(f"nanovllm.{module}")


def test_the_replacements_exist() -> None:
    for text in [*_ABSENT.values(), "docs/from-nano-vllm.md"]:
        for path in re.findall(r"\S+/[\w/.-]+", text):
            assert (ROOT / path).exists(), path
    with pytest.raises(ModuleNotFoundError, match="No module named 'nanovllm.none'"):
        importlib.import_module("nanovllm.none")


def test_the_example_shows_sharing_and_a_preemption() -> None:
    script = ROOT / "examples/scheduler_by_hand.py"
    shown = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True)
    assert "shared blocks and their counts {0: 2, 1: 2}\n  8 tokens of the second" in shown.stdout
    assert "no block was free: sequence 2 gave its blocks back and waits" in shown.stdout
