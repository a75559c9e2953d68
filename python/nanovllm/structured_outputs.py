"""The form of an answer, with vLLM's names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any


@dataclass(slots=True)
class StructuredOutputsParams:
    """The form that an answer must have: exactly one of json, regex, choice, grammar, json_object and
    structural_tag. A schema is a dictionary, its JSON text, or a class of pydantic.

    whitespace_pattern is a regular expression for the white space between the tokens of JSON;
    disable_any_whitespace leaves only ", " and ": ". With disable_additional_properties objects have
    only members that the schema names.
    """

    json: str | Mapping[str, Any] | type | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | Mapping[str, Any] | None = None
    # vLLM's choice of a library for grammars. This engine has one of its own.
    backend: str | None = None
    disable_fallback: bool = False


class GuidedDecodingParams(StructuredOutputsParams):
    """The name of StructuredOutputsParams in vLLM before 0.12."""

    __slots__ = ()


def json_of(form: object) -> str:
    """The form as the text of a JSON object, for the extension. A dictionary has the same names."""
    if isinstance(form, StructuredOutputsParams):
        given = {field.name: getattr(form, field.name) for field in fields(form)}
    elif isinstance(form, Mapping):
        given = dict(form)
    else:
        raise TypeError(
            f"structured_outputs is {form!r:.60}; it must be StructuredOutputsParams or a dictionary"
        )
    schema: Any = given.get("json")
    if hasattr(schema, "model_json_schema"):
        given["json"] = schema.model_json_schema()
    try:
        return json.dumps(given, default=_plain)
    except (TypeError, ValueError) as error:
        raise TypeError(f"structured_outputs is not JSON: {error}") from None


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (Sequence, set, frozenset)):
        return [*value]
    raise TypeError(f"{value!r:.60} has no form in JSON")
