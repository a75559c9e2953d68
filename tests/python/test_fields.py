"""SamplingParams and EngineOptions have the fields and defaults of the extension's descriptions."""

import dataclasses
from typing import Any

import pytest

from nanovllm import EngineOptions, SamplingParams, _core
from nanovllm.options import _GENERATION_CONFIG, OTHER_NAMES, LLMOptions

DEFAULTS = _core.sampling_fields(SamplingParams())
ENGINE_DEFAULTS = _core.engine_fields({})


def test_sampling_params_have_the_fields_and_defaults_of_the_engine() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(SamplingParams)}
    assert sorted(fields) == sorted(DEFAULTS)
    for name, default in fields.items():
        # None may also be the default of a list that is empty.
        assert default == DEFAULTS[name] or (default is None and not DEFAULTS[name]), name


def test_engine_options_are_the_fields_of_the_engine_and_nano_vllms_names() -> None:
    expected = {*ENGINE_DEFAULTS, *OTHER_NAMES}
    assert set(EngineOptions.__annotations__) == expected
    assert set(OTHER_NAMES.values()) <= set(ENGINE_DEFAULTS)


def test_llm_takes_the_options_of_vllm_that_are_checked() -> None:
    more = set(LLMOptions.__annotations__) - set(EngineOptions.__annotations__)
    assert more > {*_GENERATION_CONFIG}
    for name in more - {*_GENERATION_CONFIG}:
        assert _core.check_vllm_option(name, "None", name, ()), name


def other_values(default: Any) -> list[Any]:
    """Values of the type of a default. None may be the default of a number or of a list."""
    kinds: dict[type, list[Any]] = {
        float: [0.1 + 0.2],
        int: [3, 48],
        bool: [not default],
        str: ["cpu", "float16", "dummy", "some text"],
        list: [["two words"], [3, 4]],
        dict: [{3: -1.5}],
        type(None): [3, [3, 4], {"regex": "a+"}],
    }
    return kinds[type(default)]


@pytest.mark.parametrize("name", DEFAULTS)
def test_each_sampling_field_reaches_the_engine(name: str) -> None:
    for value in other_values(DEFAULTS[name]):
        try:
            params = SamplingParams(**{name: value})
        except TypeError:  # the field has another type
            continue
        assert _core.sampling_fields(params) == {**DEFAULTS, name: value}
        return
    pytest.fail(f"{name} takes none of the values")


@pytest.mark.parametrize("name", ENGINE_DEFAULTS)
def test_each_engine_option_reaches_the_engine(name: str) -> None:
    value = next(v for v in other_values(ENGINE_DEFAULTS[name]) if v != ENGINE_DEFAULTS[name])
    assert _core.engine_fields({name: value}) == {**ENGINE_DEFAULTS, name: value}
    with pytest.raises(TypeError, match=name):
        _core.engine_fields({name: object()})
