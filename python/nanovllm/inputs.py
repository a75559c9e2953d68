"""What a prompt may be, and how the arguments of LLM.generate become a list of prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypedDict, Union, cast

if TYPE_CHECKING:
    from typing_extensions import NotRequired


class Array(Protocol):
    """A numpy array or PyTorch tensor of ids, or anything else with tolist()."""

    def tolist(self) -> Any: ...


TokenIds = Union[Sequence[int], Array]


class TextPrompt(TypedDict):
    """A prompt given as a text."""

    prompt: str
    cache_salt: NotRequired[str]  #: prompts share cached blocks only if theirs are equal


class TokensPrompt(TypedDict):
    """A prompt given as token ids, which are used as they are."""

    prompt_token_ids: TokenIds
    prompt: NotRequired[str]  #: the text that the ids were made from; it is not read
    cache_salt: NotRequired[str]  #: the same as that of TextPrompt


Prompt = Union[str, TokenIds, TextPrompt, TokensPrompt, Mapping[str, Any]]


def to_prompts(prompts: Prompt | Iterable[Prompt] | None, ids: Any) -> list[Prompt]:
    """The prompts of a call as a list; a single prompt needs no list. `ids`: what was given as
    prompt_token_ids."""
    if (prompts is None) == (ids is None):
        raise TypeError("give either prompts or prompt_token_ids")
    given: Any = prompts if ids is None else ids
    if isinstance(given, (set, frozenset)):
        raise TypeError("prompts is a set, which has no order; give a list of prompts")
    if ids is not None and isinstance(given, (str, Mapping)):
        raise TypeError(
            f"prompt_token_ids is {given!r:.60}; it must be a list of token ids, or several"
        )
    if isinstance(given, (str, bytes, Mapping)):
        return [cast("Prompt", given)]
    given = _plain_list(given)
    if not isinstance(given, Iterable):
        raise TypeError(
            f"prompts is {given!r:.60}; it must be a string, a list of token ids, a dictionary "
            "with one of both, or several of these"
        )
    listed = list(given)
    is_one = bool(listed) and all(isinstance(item, Integral) for item in listed)
    return [listed] if is_one else listed


_RIGHT_KEYS = (
    "it must have 'prompt', a string, or 'prompt_token_ids', a list of token ids, and may have "
    "'cache_salt', a string"
)


def _plain_list(value: Any) -> Any:
    """numpy's arrays and PyTorch's tensors as lists."""
    return value.tolist() if hasattr(value, "tolist") else value


class SplitPrompt(NamedTuple):
    given: str | Sequence[int]  #: what the engine gets: of a text and token ids the ids
    text: str | None  #: if it is known
    cache_salt: str


def split_prompt(prompt: Prompt) -> SplitPrompt:
    if not isinstance(prompt, Mapping):
        own = prompt if isinstance(prompt, str) else None
        return SplitPrompt(cast("str | Sequence[int]", prompt), own, "")
    given: dict[str, Any] = {name: value for name, value in prompt.items() if value is not None}
    for name in given:
        if name not in ("prompt", "prompt_token_ids", "cache_salt"):
            raise TypeError(f"a prompt is a dictionary with the key {name!r:.60}; {_RIGHT_KEYS}")
    text, ids = given.get("prompt"), given.get("prompt_token_ids")
    if text is None and ids is None:
        raise TypeError(f"a prompt is a dictionary without a prompt; {_RIGHT_KEYS}")
    if text is not None and not isinstance(text, str):
        raise TypeError(f"prompt is {text!r:.60}; it must be a string")
    if isinstance(ids, str):
        raise TypeError("prompt_token_ids is a text; it must be a list of token ids")
    salt = given.get("cache_salt", "")
    return SplitPrompt(cast("str | Sequence[int]", text if ids is None else ids), text, salt)
