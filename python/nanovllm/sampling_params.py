from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, fields
from typing import Any

from nanovllm import _core
from nanovllm._unsupported import neutral_values, refuse
from nanovllm.options import describe
from nanovllm.structured_outputs import StructuredOutputsParams

_NEUTRAL = neutral_values("SamplingParams")  # vLLM's other arguments


# nanovllm/base/config.h describes each field; help() shows those texts.
@dataclass(slots=True)
class SamplingParams:
    """How one request is sampled, with vLLM's names and meanings. None means a field's default; for
    max_tokens it means no limit.

    Raises UserError for a value out of range and TypeError for a wrong type; both name the field,
    its value and what would be right. `generate` checks values that are set later. vLLM's other
    arguments, such as best_of, may be given with the values that ask for nothing.
    """

    temperature: float = 1.0
    max_tokens: int | None = 64
    ignore_eos: bool = False
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    min_tokens: int = 0
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    seed: int | None = None
    structured_outputs: StructuredOutputsParams | dict[str, Any] | None = None
    skip_special_tokens: bool = True
    detokenize: bool = True
    best_of: InitVar[int | None] = None  # vLLM's; it may be n
    guided_decoding: InitVar[StructuredOutputsParams | dict[str, Any] | None] = None  # older name

    def __post_init__(
        self, best_of: int | None, guided_decoding: StructuredOutputsParams | dict[str, Any] | None
    ) -> None:
        if best_of != self.n:
            refuse("SamplingParams", {"best_of": best_of}, _NEUTRAL, ())
        if guided_decoding is not None:
            if self.structured_outputs is not None:
                raise _core.UserError("structured_outputs and guided_decoding are both given")
            self.structured_outputs = guided_decoding
        _core.validate(self)

    def clone(self) -> SamplingParams:
        """A copy whose lists and dictionaries are its own."""
        return copy.deepcopy(self)


_init_fields = SamplingParams.__init__


@functools.wraps(_init_fields)
def _init(self: SamplingParams, *args: Any, **kwargs: Any) -> None:
    known = (*_defaults, "best_of", "guided_decoding")
    others = {name: kwargs.pop(name) for name in [*kwargs] if name not in known}
    _init_fields(self, *args, **kwargs)
    refuse("SamplingParams", others, _NEUTRAL, _defaults)


# The dataclass generates a constructor from the fields, and the other arguments are no fields.
SamplingParams.__init__ = _init  # type: ignore[method-assign]

_defaults = {field.name: field.default for field in fields(SamplingParams)}
SamplingParams.__doc__ = (
    f"{SamplingParams.__doc__}\n{describe(_defaults, _core.sampling_help(), _defaults)}"
)
