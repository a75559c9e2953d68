"""Answers of a given form."""

import copy
import json
import pickle
import re
from typing import Any

import pytest
from conftest import TINY_TALES

from nanovllm import (
    LLM,
    GuidedDecodingParams,
    SamplingParams,
    StructuredOutputsParams,
    UserError,
    _core,
)

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 3, "maximum": 9}},
    "required": ["age"],
    "additionalProperties": False,
}


class Person:
    """Like a model class of pydantic."""

    @staticmethod
    def model_json_schema() -> dict[str, Any]:
        return PERSON


def form_of(params: SamplingParams) -> Any:
    return _core.sampling_fields(params)["structured_outputs"]


def test_a_form_reaches_the_engine() -> None:
    assert form_of(SamplingParams()) is None
    for schema in (PERSON, json.dumps(PERSON), Person):
        form = form_of(SamplingParams(structured_outputs=StructuredOutputsParams(json=schema)))
        assert json.loads(form.pop("json")) == PERSON and not form
    more = StructuredOutputsParams(
        choice=("a", "b"), whitespace_pattern=" ", disable_any_whitespace=True, backend="xgrammar"
    )
    assert form_of(SamplingParams(structured_outputs=more)) == {
        "choice": ["a", "b"],
        "whitespace_pattern": " ",
        "disable_any_whitespace": True,
    }
    older = SamplingParams(guided_decoding=GuidedDecodingParams(regex="a"))
    assert form_of(older) == {"regex": "a"}
    assert older.structured_outputs == GuidedDecodingParams(regex="a")
    assert pickle.loads(pickle.dumps(older)) == copy.deepcopy(older) == older


def test_several_forms_are_refused() -> None:
    with pytest.raises(UserError, match="json and regex; it must have one of"):
        SamplingParams(structured_outputs=StructuredOutputsParams(json={}, regex="a"))
    with pytest.raises(UserError, match="no form"):
        SamplingParams(structured_outputs=StructuredOutputsParams())
    form = StructuredOutputsParams(regex="a")
    with pytest.raises(UserError, match="both given"):
        SamplingParams(structured_outputs=form, guided_decoding=form)


def test_answers_have_their_form() -> None:
    llm = LLM(TINY_TALES)
    forms = [
        StructuredOutputsParams(json=Person, disable_any_whitespace=True),
        StructuredOutputsParams(regex="[0-9]{3}"),
        StructuredOutputsParams(choice=["cat", "dog"]),
    ]
    params = [SamplingParams(structured_outputs=form, n=2) for form in forms]
    texts = [
        [answer.text for answer in output.outputs] for output in llm.generate(["The"] * 3, params)
    ]
    for text in texts[0]:
        assert json.loads(text)["age"] in range(3, 10)
    assert all(re.fullmatch("[0-9]{3}", text) for text in texts[1])
    assert {*texts[2]} <= {"cat", "dog"}
    with pytest.raises(UserError, match="^structured_outputs"):
        llm.generate("The", SamplingParams(structured_outputs={"regex": "("}))
