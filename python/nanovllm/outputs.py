"""What LLM returns. The results are dictionaries with nano-vLLM's keys, and have vLLM's attributes.

output["text"], output["outputs"][0]["logprobs"][0][0]["logprob"]
output.outputs[0].text, output.outputs[0].logprobs[0][token_id].logprob
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple


@dataclass(slots=True)
class Logprob:
    """The log-probability of a token at one position."""

    logprob: float  #: natural; from the raw logits, unless the LLM's logprobs_mode says otherwise
    rank: int  #: among all tokens; 1 is the best
    decoded_token: str | None = None  #: its text; None without a tokenizer


@dataclass(slots=True)
class RequestMetrics:
    """When things happened to a request, in seconds on the clock of time.time()."""

    arrival_time: float
    first_token_time: float | None  #: None if it ended without a token
    finished_time: float


class EngineStats(NamedTuple):
    """The state after the latest step, and counts since the engine was started."""

    steps: int
    prefill_tokens: int  #: computed, so without those found in the prefix cache
    decode_tokens: int
    preemptions: int
    generated_tokens: int  #: drawn, without those that came after an end
    prefix_queries: int  #: prompt tokens looked up in the prefix cache
    prefix_hits: int  #: of these, tokens that were found
    blocks_taken: int  #: of the KV cache, for new contents
    blocks_shared: int  #: times that a block with its contents got one more holder
    blocks_freed: int  #: times that the last holder gave a block back
    num_running: int  #: sequences
    num_waiting: int
    num_blocks: int  #: of the KV cache
    num_free_blocks: int
    host_seconds: float  #: of scheduling, building and postprocessing steps
    mask_seconds: float  #: of host_seconds: for what the forms of answers allow
    compile_seconds: float  #: in which forms of answers were compiled, by all threads
    device_seconds: float  #: in which a step was computed


class _Tokens(dict[str, Any]):
    """The keys that an answer and a piece of it have in common."""

    _decoded_tokens: dict[int, str]  # of the tokens in the log-probabilities

    @property
    def stop_reason(self) -> int | str | None:
        """The id from stop_token_ids or the text from stop that ended the answer."""
        return self["stop_reason"]  # type: ignore[no-any-return]

    @cached_property
    def logprobs(self) -> list[dict[int, Logprob]] | None:
        """One dictionary for each token, from ids to Logprob: the sampled token, then the best k.
        None unless logprobs were requested. The key "logprobs" has the same as lists of
        {"id", "logprob", "rank"}."""
        return [
            _by_id(entries, self._decoded_tokens) for entries in self.get("logprobs", [])
        ] or None


class _Answer(_Tokens):
    """The keys that a choice and a request have in common."""

    @property
    def text(self) -> str:
        """Without special tokens, unless skip_special_tokens is False."""
        return self["text"]  # type: ignore[no-any-return]

    @property
    def token_ids(self) -> list[int]:
        """Includes the end token, if one was sampled."""
        return self["token_ids"]  # type: ignore[no-any-return]

    @property
    def finish_reason(self) -> str:
        """stop, length, abort or error."""
        return self["finish_reason"]  # type: ignore[no-any-return]

    @property
    def error(self) -> str | None:
        """What went wrong, if the finish_reason is error."""
        return self.get("error")


class CompletionOutput(_Answer):
    """One answer to a prompt. Keys: text, token_ids, finish_reason, stop_reason, and, if there are
    any, logprobs and error."""

    index: int  #: which of the n answers it is
    cumulative_logprob: (
        float | None
    )  #: the sum over the tokens; None unless logprobs were requested

    def finished(self) -> bool:
        """True: only finished answers are returned."""
        return True


class RequestOutput(_Answer):
    """The answers to a prompt. Keys: those of the first answer, and index (of the prompt in the
    call), prompt_token_ids, num_cached_tokens, outputs (all answers) and, if they were requested,
    prompt_logprobs. Two outputs are equal if their keys have equal values."""

    request_id: str
    prompt: str | None  #: the text of the prompt; None if it was given as token ids
    metrics: RequestMetrics

    def __init__(
        self, keys: dict[str, Any], more: dict[str, Any], prompt: str | None, index: int
    ) -> None:
        """`keys` and `more` come from the extension; `index` is that of the prompt."""
        super().__init__(keys, index=index)
        self.request_id = more["request_id"]
        self.prompt = prompt
        self._decoded_tokens = more["decoded_tokens"]
        # The engine has the monotonic clock.
        arrival, first_token, finished = more["times"]
        since = time.time() - time.monotonic()
        first = since + first_token if first_token > 0 else None
        self.metrics = RequestMetrics(since + arrival, first, since + finished)
        self["outputs"] = [CompletionOutput(answer) for answer in keys["outputs"]]
        for choice, answer in enumerate(self.outputs):
            answer.index = choice
            answer.cumulative_logprob = more["cumulative_logprobs"][choice]
            answer._decoded_tokens = self._decoded_tokens

    @property
    def outputs(self) -> list[CompletionOutput]:
        """All n answers."""
        return self["outputs"]  # type: ignore[no-any-return]

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt's token ids."""
        return self["prompt_token_ids"]  # type: ignore[no-any-return]

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that were read from the prefix cache; less than the prompt has."""
        return self["num_cached_tokens"]  # type: ignore[no-any-return]

    @cached_property
    def prompt_logprobs(self) -> list[dict[int, Logprob] | None] | None:
        """The same as `logprobs` for each token of the prompt; the first one has None."""
        entries = self.get("prompt_logprobs", [])
        return [e and _by_id(e, self._decoded_tokens) for e in entries] or None

    @property
    def finished(self) -> bool:
        """True: only finished requests are returned."""
        return True


class StreamPiece(_Tokens):
    """What one step added to an answer. Keys: those of the attributes; logprobs only if they were
    requested."""

    def __init__(self, keys: dict[str, Any], texts: dict[int, str], index: int) -> None:
        """`keys` and `texts` come from the extension; `index` is that of the prompt."""
        super().__init__(keys, index=index)
        self._decoded_tokens = texts

    @property
    def index(self) -> int:
        """Of the prompt in the call."""
        return self["index"]  # type: ignore[no-any-return]

    @property
    def choice(self) -> int:
        """Which of the n answers it belongs to."""
        return self["choice"]  # type: ignore[no-any-return]

    @property
    def text(self) -> str:
        """The new text; may be empty while a character is incomplete."""
        return self["text"]  # type: ignore[no-any-return]

    @property
    def token_ids(self) -> list[int]:
        """The new tokens."""
        return self["token_ids"]  # type: ignore[no-any-return]

    @property
    def finish_reason(self) -> str | None:
        """stop, length, abort or error in the last piece of a choice, otherwise None."""
        return self["finish_reason"]  # type: ignore[no-any-return]

    @property
    def output(self) -> RequestOutput | None:
        """The whole result in the last piece of a prompt, otherwise None."""
        return self["output"]  # type: ignore[no-any-return]


def _by_id(entries: list[dict[str, Any]], texts: dict[int, str]) -> dict[int, Logprob]:
    return {e["id"]: Logprob(e["logprob"], e["rank"], texts.get(e["id"])) for e in entries}
