from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nanovllm import _core


@dataclass(slots=True)
class SamplingParams:
    """How one request is sampled, with vLLM's names and meanings. None means a field's default; for
    max_tokens it means no limit.

    Raises ValueError for a value out of range and TypeError for a wrong type; both name the field,
    its value and what would be right. `generate` checks values that are set later.
    """

    temperature: float = 1.0  #: 0 (below 1e-5): greedy
    max_tokens: int | None = 64  #: of the answer; None: only max_model_len limits it
    ignore_eos: bool = False  #: end tokens do not end the answer
    top_p: float = 1.0  #: keep the fewest best tokens whose total probability reaches it; 1: off
    top_k: int = 0  #: keep the top_k best tokens; 0 or -1: off
    min_p: float = 0.0  #: least probability, relative to that of the best token
    min_tokens: int = 0  #: before it, end tokens and stop_token_ids cannot be drawn
    stop: str | Sequence[str] | None = None  #: texts that end the answer and are not part of it
    stop_token_ids: Sequence[int] | None = None
    presence_penalty: float = 0.0  #: subtracted from logits of tokens in the answer, -2 to 2
    frequency_penalty: float = 0.0  #: the same, multiplied by how often they occur, -2 to 2
    repetition_penalty: float = 1.0  #: divides positive logits of tokens in prompt and answer
    logit_bias: dict[int, float] | None = None  #: added to the logit of each token id, -100 to 100
    allowed_token_ids: Sequence[int] | None = None  #: only these are drawn
    bad_words: Sequence[str] | None = None  #: the last token of each is not drawn after the others
    logprobs: int | None = None  #: best alternatives for each token, 0 to 20
    prompt_logprobs: int | None = None  #: the same for each prompt token
    n: int = 1  #: answers, 1 to 128
    seed: int | None = None  #: the same seed gives the same tokens, in any batch
    skip_special_tokens: bool = True  #: leave special tokens out of the text
    detokenize: bool = True  #: False: the text stays empty

    def __post_init__(self) -> None:
        _core.validate(self)
