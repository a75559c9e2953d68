"""Drives nano-vLLM's Scheduler by hand, without a model: the tokens are chosen here. It shows two
sequences that share the blocks of their common prefix, and a preemption.

python examples/scheduler_by_hand.py
"""

from nanovllm import SamplingParams
from nanovllm.config import Config
from nanovllm.engine.scheduler import Scheduler
from nanovllm.engine.sequence import Sequence


def step(scheduler: Scheduler, sequences: list[Sequence], token: int = 7) -> None:
    """One step of the engine. The model would compute it between schedule and postprocess."""
    preemptions = scheduler.stats["preemptions"]
    seqs, is_prefill = scheduler.schedule()
    decodes = [seq for seq in seqs if seq.num_completion_tokens and seq.num_scheduled_tokens == 1]
    kind = "prefill" if not decodes else "prefill beside decodes" if is_prefill else "decodes"
    print(f"step {scheduler.stats['steps']}, {kind}:")
    if scheduler.stats["preemptions"] > preemptions:
        preempted = scheduler.waiting[0].seq_id
        print(f"  no block was free: sequence {preempted} gave its blocks back and waits")
    for seq in [seq for seq in sequences if not seq.is_finished]:
        print(
            f"  sequence {seq.seq_id}: {seq.status.name:8} {seq.num_tokens:2} tokens,"
            f" {seq.num_scheduled_tokens} in this step, blocks {seq.block_table}"
        )
    manager = scheduler.block_manager
    shared = {block.block_id: block.ref_count for block in manager.blocks if block.ref_count > 1}
    print(f"  free blocks {manager.free_block_ids}; shared blocks and their counts {shared}")
    scheduler.postprocess(seqs, [token] * len(seqs), is_prefill)


def main() -> None:
    # Six blocks of 4 tokens. A prompt of 11 tokens takes three of them, and two are full.
    scheduler = Scheduler(Config(num_kvcache_blocks=6, kvcache_block_size=4))
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    prefix = [1, 2, 3, 4, 5, 6, 7, 8]
    first, second, third = (Sequence(prefix + [n] * 3, params) for n in (20, 30, 40))

    print("== Prefix sharing: the second sequence finds the two full blocks of the first.")
    scheduler.add(first)
    step(scheduler, [first])
    scheduler.add(second)
    step(scheduler, [first, second])
    print(f"  {second.num_cached_tokens} tokens of the second were cached")

    print("== Preemption: the sequences grow until no block is free, and the newest one yields.")
    scheduler.add(third)
    while not scheduler.is_finished():
        step(scheduler, [first, second, third])


if __name__ == "__main__":
    main()
