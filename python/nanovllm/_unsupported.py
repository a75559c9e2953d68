"""Arguments of vLLM that this engine does not have. A script may give them if their values ask for
nothing, so that it runs as it is; otherwise its results would differ, which is an error.
nanovllm/params/unsupported.cpp lists them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Container, Iterable, Mapping

from nanovllm import _core

# The values of an argument that ask for nothing. None always does.
Neutral = Mapping[str, Container[object]]


class _AnyList(Container[object]):
    def __contains__(self, value: object) -> bool:
        return isinstance(value, (list, tuple))


def neutral_values(owner: str) -> dict[str, Container[object]]:
    """Those of the arguments that `owner` has in vLLM."""
    listed = _core.unsupported_arguments(owner).items()
    return {name: _AnyList() if text == "LIST" else json.loads(text) for name, text in listed}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return f"; did you mean '{near[0]}'?" if near else ""


def refuse(owner: str, given: Mapping[str, object], neutral: Neutral, known: Iterable[str]) -> None:
    """Raises an error for the first argument that asks for something. `known`: the arguments that
    `owner` has, for a name that is misspelled."""
    for name, value in given.items():
        if name not in neutral:
            raise TypeError(f"{owner} has no argument '{name}'{did_you_mean(name, known)}")
        if value is not None and value not in neutral[name]:
            raise _core.UserError(f"{name}={value!r:.60} is not supported; leave it out")
