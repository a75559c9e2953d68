from __future__ import annotations

import atexit
import difflib
import os
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, cast

from nanovllm import _core
from nanovllm._binary import BINARY
from nanovllm.sampling_params import SamplingParams
from nanovllm.tokenizer import Tokenizer

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Protocol

    from typing_extensions import NotRequired, Self, Unpack

    class Array(Protocol):
        """A numpy array of ids, or anything else with tolist()."""

        def tolist(self) -> list[int]: ...

    Prompt = str | Sequence[int] | Array | Mapping[str, str | Sequence[int] | Array]


class EngineOptions(TypedDict, total=False):
    """The options of LLM. Zero or empty means that the value is chosen at the start."""

    # nano-vLLM's
    max_num_batched_tokens: int  #: tokens computed in one step
    max_num_seqs: int  #: sequences that run at the same time, 512
    max_model_len: int  #: tokens of prompt and answer together
    gpu_memory_utilization: float  #: share of the GPU's memory to use, 0.9
    tensor_parallel_size: int  #: GPUs, or groups of cores, over which the model is divided, 1
    enforce_eager: bool  #: no CUDA graphs
    kvcache_block_size: int  #: tokens in a block of the KV cache, a multiple of 16; 64
    num_kvcache_blocks: int  #: blocks of the KV cache; -1: chosen at the start
    # vLLM's
    device: str  #: auto, cpu, cuda
    dtype: str  #: auto (the checkpoint's, but bfloat16 for float32), bfloat16, float16, float32
    load_format: str  #: auto, dummy (random weights; only config.json is needed)
    kv_cache_memory_bytes: int
    block_size: int  #: another name of kvcache_block_size
    num_gpu_blocks_override: int  #: another name of num_kvcache_blocks
    enable_prefix_caching: bool
    async_scheduling: bool  #: schedule one step ahead of the device
    step_timeout: float  #: seconds without progress after which a step counts as hung, 60
    threads: int  #: of the CPU backend
    seed: int  #: of requests that have none
    trace: str  #: a file for a trace of all steps and requests, for https://ui.perfetto.dev
    worker_path: str  #: the binary that the other ranks run; by default the package's own


_OTHER_NAMES = {
    "kvcache_block_size": "block_size",
    "num_kvcache_blocks": "num_gpu_blocks_override",
}


class Logprob(TypedDict):
    id: int
    logprob: float  #: natural, from the raw logits
    rank: int  #: among all tokens; 1 is the best


class CompletionOutput(TypedDict):
    """One answer of T tokens."""

    text: str
    token_ids: list[int]  #: [T], including the end token if one was sampled
    finish_reason: str  #: stop, length, abort, error
    stop_reason: int | str | None  #: the id from stop_token_ids or text from stop that ended it
    logprobs: NotRequired[list[list[Logprob]]]  #: [T, 1 + k], the sampled token first
    error: NotRequired[str]


class RequestOutput(CompletionOutput):
    """The answer to a prompt of P tokens; the inherited fields are those of the first choice."""

    index: NotRequired[int]  #: of the prompt in the call of generate
    prompt_token_ids: list[int]  #: [P]
    num_cached_tokens: int  #: prompt tokens read from the prefix cache, at most P - 1
    prompt_logprobs: NotRequired[list[list[Logprob] | None]]  #: [P, 1 + k], None for the first
    outputs: list[CompletionOutput]  #: [n], the first one included


class StreamPiece(TypedDict):
    """What one step added to an answer."""

    text: str  #: may be empty while a character is incomplete
    token_ids: list[int]
    output: RequestOutput | None  #: the whole result in the last piece, otherwise None


# How often Python checks for Ctrl-C, and the progress bar is updated, while the engine works.
_SECONDS_BETWEEN_LOOKS = 0.1


class LLM:
    """A loaded model that generates text.

    Several threads may use it; their requests run in one batch. Raises UserError (a ValueError) for
    a mistake of the caller, and EngineDead (a RuntimeError) if the engine has failed, `exit` was
    called, or this process was forked from the one that made the LLM. `exit`, the end of a `with`
    block and the deletion of the last reference free the model's memory and its GPU at once.
    """

    def __init__(self, model: str | os.PathLike[str], **kwargs: Unpack[EngineOptions]) -> None:
        """Loads a checkpoint folder in Hugging Face layout; `kwargs` are EngineOptions. For an
        unknown option it gives a warning that suggests the most similar one."""
        known = EngineOptions.__annotations__
        options: dict[str, object] = {"worker_path": BINARY}
        for name, value in kwargs.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
                text = f"LLM has no option '{name}', which is ignored; did you mean '{near}'?"
                warnings.warn(text, stacklevel=2)
            elif not (name == "num_kvcache_blocks" and value == -1):
                options[_OTHER_NAMES.get(name, name)] = value
        self._engine = _core.Engine(os.fspath(model), options)
        self._added = _core.inbox(False)  # for the requests of add_request
        self._num_added = 0  # how many of them step has not returned yet
        self.tokenizer = Tokenizer(self._engine.tokenizer())
        _alive.add(self)

    def generate(
        self,
        prompts: Sequence[Prompt] | Mapping[str, str | Sequence[int] | Array],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Runs all prompts until they are finished, and returns their outputs in the same order.

        A prompt is a text, or 1 to max_model_len - 1 token ids, each below vocab_size; or a
        dictionary, {"prompt": text} or {"prompt_token_ids": ids}; a single dictionary needs no
        list. `sampling_params`: one, or one for each prompt. `use_tqdm`: show a progress bar on
        stderr with the speed of prefill and decode in tokens per second. Raises ValueError if a
        prompt, a parameter or their number is wrong. After an exception, also after Ctrl-C, no
        request of the call continues to run.
        """
        self._engine.require_alive()
        if isinstance(prompts, str):
            raise TypeError("prompts is a text; give a list of prompts")
        if isinstance(prompts, (set, frozenset)):
            raise TypeError("prompts is a set, which has no order; give a list of prompts")
        if isinstance(prompts, Mapping):
            prompts = [prompts]
        if sampling_params is None:
            sampling_params = SamplingParams()
        if isinstance(sampling_params, SamplingParams):
            sampling_params = [sampling_params] * len(prompts)
        if len(prompts) != len(sampling_params):
            raise ValueError(
                f"{len(prompts)} prompts and {len(sampling_params)} SamplingParams; "
                "give one, or one for each prompt"
            )
        inbox = _core.inbox(False)
        outputs: dict[int, RequestOutput] = {}
        try:
            ids = [self._add(inbox, *both) for both in zip(prompts, sampling_params)]
            with _Bar(len(ids), use_tqdm, self._engine) as bar:
                while len(outputs) < len(ids):
                    arrived = self._engine.wait(inbox, _SECONDS_BETWEEN_LOOKS)
                    outputs.update(cast("list[tuple[int, RequestOutput]]", arrived))
                    bar.update(len(arrived))
        finally:
            self._engine.abandon(inbox)
        for index, request_id in enumerate(ids):
            outputs[request_id]["index"] = index
        return [outputs[i] for i in ids]

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[StreamPiece]:
        """Yields the answer to one prompt in pieces: `for piece in llm.stream("Once"): ...`.

        The request starts when the first piece is requested, and ends if the loop is left. Raises
        what `generate` raises, and ValueError if n is above 1.
        """
        params = sampling_params or SamplingParams()
        if params.n not in (1, None):
            raise ValueError(f"n is {params.n}; a stream has one answer")
        inbox = _core.inbox(True)
        try:
            self._add(inbox, prompt, params)
            while True:
                arrived = self._engine.wait(inbox, _SECONDS_BETWEEN_LOOKS)
                for _, piece in cast("list[tuple[int, StreamPiece]]", arrived):
                    self._engine.require_alive()  # `exit` may have been called between two pieces
                    yield piece
                    if piece["output"] is not None:
                        return
        finally:
            self._engine.abandon(inbox)

    def add_request(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> int:
        """For callers that run the engine step by step: add requests, then call `step()` until
        `is_finished()`. Returns the id of the request. Raises what `generate` raises."""
        request_id = self._add(self._added, prompt, sampling_params or SamplingParams())
        self._num_added += 1
        return request_id

    def abort(self, request_id: int) -> bool:
        """Ends a request; the next `step()` returns it with the tokens it has. Returns False if no
        such request is running."""
        return self._engine.abort(request_id)

    def step(self) -> tuple[list[tuple[int, list[int]]], int]:
        """Runs one step for all requests. Returns the requests of `add_request` that ended, each as
        (id, token ids), and a number: how many prompt tokens the step computed or, if it computed
        none, minus the number of tokens that it generated."""
        before = self._engine.num_tokens()
        arrived = cast("list[tuple[int, RequestOutput]]", self._engine.wait(self._added, 0))
        prefill, decode = (b - a for a, b in zip(before, self._engine.num_tokens()))
        self._num_added -= len(arrived)
        return [(i, output["token_ids"]) for i, output in arrived], prefill or -decode

    def is_finished(self) -> bool:
        """Whether `step` has returned every request of `add_request`."""
        self._engine.require_alive()
        return self._num_added == 0

    @property
    def max_model_len(self) -> int:
        """The most tokens that a prompt and its answer may have together."""
        return self._engine.max_model_len

    @property
    def vocab_size(self) -> int:
        """Token ids are 0 to vocab_size - 1."""
        return self._engine.vocab_size

    def exit(self) -> None:
        """Frees the model now; every later use raises EngineDead."""
        self._engine.exit()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.exit()

    def _add(self, inbox: _core.Inbox, prompt: Prompt, params: SamplingParams) -> int:
        return self._engine.add(inbox, cast("str | Sequence[int]", _plain(prompt)), params)


def _plain(prompt: Prompt) -> str | Sequence[int] | Array:
    """Takes the text or the ids out of vLLM's dictionary; if it has both, the ids."""
    if not isinstance(prompt, Mapping):
        return prompt
    names = {name for name, value in prompt.items() if value is not None}
    if not names or not names <= {"prompt", "prompt_token_ids"}:
        raise TypeError(
            f"a prompt is a dictionary with {sorted(map(str, names)) or 'nothing'}; "
            "it must have 'prompt', a text, or 'prompt_token_ids', a list of token ids"
        )
    if "prompt_token_ids" not in names:
        if not isinstance(prompt["prompt"], str):
            raise TypeError(f"prompt is {prompt['prompt']!r}; it must be a text")
        return prompt["prompt"]
    if isinstance(prompt["prompt_token_ids"], str):
        raise TypeError("prompt_token_ids is a text; it must be a list of token ids")
    return prompt["prompt_token_ids"]


_alive: weakref.WeakSet[LLM] = weakref.WeakSet()


@atexit.register
def _exit_all() -> None:
    """Ends the engines before the interpreter ends, even if threads still wait for them."""
    _core.leave()
    for llm in list(_alive):
        llm.exit()


class _Bar:
    """tqdm's bar with the speed of prefill and decode, as nano-vLLM shows them."""

    def __init__(self, total: int, shown: bool, engine: _core.Engine) -> None:
        self._bar: Any = None
        if not shown:
            return
        from tqdm.auto import tqdm  # takes a tenth of a second, so only if a bar is shown

        self._bar = tqdm(total=total, desc="Generating", dynamic_ncols=True)
        self._engine = engine
        self._before = engine.num_tokens()
        self._since = time.perf_counter()
        self._speeds = {"Prefill": "0tok/s", "Decode": "0tok/s"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, num_ended: int) -> None:
        if self._bar is None:
            return
        now, counts = time.perf_counter(), self._engine.num_tokens()
        for i, name in enumerate(self._speeds):
            if counts[i] > self._before[i]:  # otherwise the last speed stays
                speed = (counts[i] - self._before[i]) / (now - self._since)
                self._speeds[name] = f"{speed:.0f}tok/s"
        self._before, self._since = counts, now
        self._bar.set_postfix(self._speeds, refresh=False)
        self._bar.update(num_ended)
