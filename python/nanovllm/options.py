"""The options of LLM. nanovllm/base/config.h describes each field; help() shows those texts."""

from __future__ import annotations

import json
import logging
import os
import re
import textwrap
import warnings
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, TypedDict

from nanovllm import _core
from nanovllm._binary import BINARY
from nanovllm._files import read_json
from nanovllm._unsupported import did_you_mean


class EngineOptions(TypedDict, total=False):
    """The options of LLM. Zero or empty means that the value is chosen at the start."""

    # nano-vLLM's
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    max_model_len: int | str | None
    gpu_memory_utilization: float
    tensor_parallel_size: int
    enforce_eager: bool
    kvcache_block_size: int
    num_kvcache_blocks: int
    # vLLM's
    device: str
    dtype: str
    load_format: str
    revision: str | None
    download_dir: str | os.PathLike[str] | None
    quantization: str | None
    local_files_only: bool
    rope_scaling: Mapping[str, object] | str | None
    hf_overrides: Mapping[str, object] | str | None
    kv_cache_memory_bytes: int | None
    kv_cache_dtype: str
    block_size: int | None
    num_gpu_blocks_override: int | None
    enable_prefix_caching: bool
    async_scheduling: bool
    step_timeout: float
    threads: int
    seed: int | None
    logprobs_mode: str
    max_logprobs: int | None
    use_cache: bool
    cache_dir: str
    trace: str
    worker_path: str


class LLMOptions(EngineOptions, total=False):
    """The options of LLM, those of its default sampling parameters, and those of vLLM that scripts
    often give. nanovllm/params/unsupported.cpp has all options of vLLM, with the values that LLM
    accepts."""

    generation_config: str | os.PathLike[str] | None
    override_generation_config: Mapping[str, Any] | str | None
    # without an effect
    trust_remote_code: bool
    swap_space: float | None
    disable_log_stats: bool
    disable_custom_all_reduce: bool
    enable_chunked_prefill: bool | None
    enable_expert_parallel: bool
    limit_mm_per_prompt: Mapping[str, Any] | None
    max_parallel_loading_workers: int | None
    code_revision: str | None
    compilation_config: Any
    structured_outputs_config: Any
    attention_config: Any
    served_model_name: str | list[str] | None
    # with some values
    cpu_offload_gb: float | None
    distributed_executor_backend: str | None
    model_impl: str
    config_format: str
    tokenizer: str | os.PathLike[str] | None
    tokenizer_mode: str
    tokenizer_revision: str | None
    hf_config_path: str | os.PathLike[str] | None
    skip_tokenizer_init: bool
    logits_processors: list[Any] | None
    enable_lora: bool
    enable_sleep_mode: bool
    speculative_config: Mapping[str, Any] | None
    kv_transfer_config: Any
    task: str | None
    runner: str | None
    convert: str | None
    pipeline_parallel_size: int
    data_parallel_size: int


OTHER_NAMES = {
    "kvcache_block_size": "block_size",
    "num_kvcache_blocks": "num_gpu_blocks_override",
}

_GENERATION_CONFIG = ("generation_config", "override_generation_config")

_log = logging.getLogger("nanovllm")


def describe(
    names: Mapping[str, object],
    helps: Mapping[str, tuple[str, str]],
    defaults: Mapping[str, object],
) -> str:
    """A paragraph of a docstring for each field. What a help text has in parentheses concerns the
    command line and is left out."""
    paragraphs = []
    for name in names:
        field = OTHER_NAMES.get(name, name)
        value, text = helps[field]
        text = f"The same as {field}" if field != name else re.sub(r" \([^)]*\)", "", text)
        lines = textwrap.wrap(text, 92, initial_indent="    ", subsequent_indent="    ")
        kind = f": {value}" if value else ""
        paragraphs.append("\n".join([f"{name}{kind} = {defaults[field]!r}", *lines]))
    return textwrap.indent("\n".join(paragraphs), "    ")


OPTIONS_HELP = describe(EngineOptions.__annotations__, _core.engine_help(), _core.engine_fields({}))
EngineOptions.__doc__ = f"{EngineOptions.__doc__}\n\n{OPTIONS_HELP}"


def by_field(options: Mapping[str, object]) -> dict[str, object]:
    """The options of EngineOptions by the names of the engine's fields, without those whose value
    means the default. Raises UserError if the two names of one have different values."""
    fields: dict[str, object] = {}
    for name, value in options.items():
        if value is None or (name == "num_kvcache_blocks" and value == -1):
            continue
        field = OTHER_NAMES.get(name, name)
        if name in EngineOptions.__annotations__ and fields.setdefault(field, value) != value:
            other = next(o for o in options if o != name and OTHER_NAMES.get(o, o) == field)
            raise _core.UserError(
                f"{other} is {options[other]!r:.60} and {name} is {value!r:.60}; they are names of "
                "one option, so give one of them"
            )
    return fields


def to_engine_fields(model: str, folder: str, options: Mapping[str, object]) -> dict[str, object]:
    """The fields of EngineConfig. `model`: what the caller has named it; `folder`: where it is.

    Gives warnings for options that do not exist and for a context that is longer than the model's,
    which is then used instead. Raises UserError for an option of vLLM without which the results
    would differ."""
    fields: dict[str, object] = {"worker_path": BINARY}
    fields |= {name: _value(name, value) for name, value in by_field(options).items()}
    known = EngineOptions.__annotations__
    without_effect = []
    for name, value in options.items():
        if name in known or name in _GENERATION_CONFIG:
            continue
        shown = f"{name}={value!r:.60}"
        if _core.check_vllm_option(name, _text(value), shown, (model, folder)):
            without_effect.append(name)
        else:
            _warn(f"LLM has no option '{name}', which is ignored{did_you_mean(name, known)}")
    if without_effect:
        _log.info("these options of vLLM have no effect here: %s", ", ".join(without_effect))
    asked = fields.get("max_model_len")
    if isinstance(asked, Integral):
        longest = _longest_context(folder, options)
        if isinstance(longest, int) and int(asked) > longest > 0:
            _warn(
                f"max_model_len {asked} is lowered to {longest}, the model's own limit "
                "(max_position_embeddings)"
            )
            fields["max_model_len"] = longest
    return fields


def _longest_context(folder: str, options: Mapping[str, object]) -> object:
    """The model's max_position_embeddings, or with yarn the longer context that it makes; None if
    they are not known. The engine finds mistakes in the values."""
    config = read_json(Path(folder, "config.json"))
    own = config.get("max_position_embeddings")
    overrides = _mapping(options.get("hf_overrides"))
    own = overrides.get("max_position_embeddings", own)
    keys = ("rope_scaling", "rope_parameters")
    ropes = [options.get("rope_scaling"), *map(overrides.get, keys), *map(config.get, keys)]
    rope = next(filter(None, map(_mapping, ropes)), {})
    if not isinstance(own, int) or "yarn" not in (rope.get("rope_type"), rope.get("type")):
        return own
    factor, original = rope.get("factor"), rope.get("original_max_position_embeddings", own)
    if not (isinstance(factor, (int, float)) and isinstance(original, (int, float))):
        return None
    return max(own, int(factor * original))


def _mapping(value: object) -> Mapping[str, object]:
    """A dictionary that may be given as JSON; empty if it is none."""
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return {}
    return value if isinstance(value, Mapping) else {}


def _value(name: str, value: object) -> object:
    """An option's value as the engine takes it: paths, dictionaries and vLLM's names for a value
    that is chosen at the start are converted."""
    if name in ("rope_scaling", "hf_overrides"):
        return _json(name, value)
    if name == "max_model_len" and value in ("auto", -1):
        return 0
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _json(name: str, value: object) -> str:
    """A dictionary as JSON, which may also be given as such."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is {value!r:.60}; it must be a dictionary or its JSON")
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} cannot be written as JSON: {error}") from None


def _text(value: object) -> str:
    """A value of an option as it would stand on the command line."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple, dict)) and not value:
        return ""
    return str(value)


def to_generation_config(folder: str, options: Mapping[str, Any]) -> tuple[str, str, str]:
    """The arguments of _core.default_sampling_params. Raises UserError if they are wrong."""
    source = os.fspath(options.get("generation_config") or "auto")
    given = options.get("override_generation_config")
    config = folder, source, "" if given is None else _json("override_generation_config", given)
    if config[1:] != ("auto", ""):
        _core.default_sampling_params(*config)
    return config


def with_given_names(error: Exception, options: Mapping[str, object]) -> Exception:
    """The same error with the names that the caller has used."""
    text = str(error)
    for other, name in OTHER_NAMES.items():
        if other in options:
            text = re.sub(rf"\b{name}\b", other, text)
    return type(error)(text)


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=4)  # the caller of LLM()
