from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nanovllm import _core


@dataclass(slots=True)
class SamplingParams:
    """How one request is sampled, with vLLM's names and meanings; None is a field's default, and
    for max_tokens no limit.

    Raises ValueError, with the field, its value and what would be right, for a value out of range,
    and TypeError for one of another kind. Values that are set later are checked by `generate`.
    """

    temperature: float = 1.0  #: 0 (below 1e-5): greedy
    max_tokens: int | None = 64  #: of the answer, which also ends at max_model_len; None: there
    ignore_eos: bool = False  #: end tokens do not end the answer
    top_p: float = 1.0  #: the smallest set of best tokens whose probability reaches it; 1: off
    top_k: int = 0  #: only so many best tokens; 0 or -1: off
    min_p: float = 0.0  #: least probability, as a share of the best token's
    min_tokens: int = 0  #: end tokens and stop_token_ids cannot be drawn before
    stop: str | Sequence[str] | None = None  #: texts that end the answer and are not part of it
    stop_token_ids: Sequence[int] | None = None
    presence_penalty: float = 0.0  #: -2 to 2, from the logits of tokens that the answer holds
    frequency_penalty: float = 0.0  #: -2 to 2, the same for each time that it holds them
    repetition_penalty: float = 1.0  #: divides positive logits of tokens in prompt and answer
    logit_bias: dict[int, float] | None = None  #: token id to what its logit gets, -100 to 100
    allowed_token_ids: Sequence[int] | None = None  #: no others are drawn
    bad_words: Sequence[str] | None = None  #: texts whose last token is not drawn after the rest
    logprobs: int | None = None  #: best alternatives for each token, 0 to 20
    prompt_logprobs: int | None = None  #: the same for each prompt token
    n: int = 1  #: answers, 1 to 128
    seed: int | None = None  #: the same seed gives the same tokens, in any batch
    skip_special_tokens: bool = True  #: leave special tokens out of the text

    def __post_init__(self) -> None:
        _core.validate(self)
