"""Answers to several prompts at the same time in a program that uses asyncio, and one that is cancelled:

python examples/async_stream.py [MODEL]
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from nanovllm import LLM, SamplingParams, StreamPiece


async def stream(llm: LLM, prompt: str, params: SamplingParams) -> AsyncIterator[StreamPiece]:
    """Leaving the loop, or cancelling the task that runs it, ends the request."""
    pieces = llm.stream(prompt, params)
    thread = ThreadPoolExecutor(1)  # the calls of a generator must not overlap
    loop = asyncio.get_running_loop()
    try:
        while piece := await loop.run_in_executor(thread, next, pieces, None):
            yield piece
    finally:
        await loop.run_in_executor(thread, pieces.close)  # after a call that waits for its piece
        thread.shutdown()


async def answer(llm: LLM, prompt: str, params: SamplingParams) -> str:
    return "".join([piece.text async for piece in stream(llm, prompt, params)])


async def main(model: str) -> None:
    with LLM(model) as llm:
        prompts = ["Once upon a time", "There was a king", "The fox said"]
        params = SamplingParams(temperature=0.6, max_tokens=48, seed=1)
        texts = await asyncio.gather(*(answer(llm, prompt, params) for prompt in prompts))
        for prompt, text in zip(prompts, texts):
            print(f"{prompt}{text}\n")

        endless = SamplingParams(max_tokens=None, ignore_eos=True)
        try:
            await asyncio.wait_for(answer(llm, "The sea", endless), timeout=0.2)
        except asyncio.TimeoutError:
            print(f"cancelled; {llm.stats().num_running} requests run")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "models/tiny-tales"))
