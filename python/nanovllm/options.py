"""The options of LLM. nanovllm/base/config.h describes each field; help() shows those texts."""

from __future__ import annotations

import json
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
from nanovllm._unsupported import AnyOf, Neutral, did_you_mean, is_neutral, refuse


class EngineOptions(TypedDict, total=False):
    """The options of LLM. Zero or empty means that the value is chosen at the start."""

    # nano-vLLM's
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    max_model_len: int | None
    gpu_memory_utilization: float
    tensor_parallel_size: int
    enforce_eager: bool
    kvcache_block_size: int
    num_kvcache_blocks: int
    # vLLM's
    device: str
    dtype: str
    load_format: str
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
    use_cache: bool
    cache_dir: str
    trace: str
    worker_path: str


class LLMOptions(EngineOptions, total=False):
    """The options of LLM, and those of vLLM that LLM accepts with values that ask for nothing."""

    generation_config: str | None
    max_logprobs: int | None
    # without an effect
    trust_remote_code: bool
    swap_space: float | None
    disable_log_stats: bool
    disable_custom_all_reduce: bool
    enable_chunked_prefill: bool | None
    cpu_offload_gb: float | None
    download_dir: None
    max_parallel_loading_workers: None
    distributed_executor_backend: str | None
    model_impl: str
    config_format: str
    compilation_config: Any
    served_model_name: str | list[str] | None
    # not supported
    tokenizer: str | os.PathLike[str] | None
    tokenizer_mode: str
    tokenizer_revision: None
    revision: None
    code_revision: None
    hf_config_path: None
    skip_tokenizer_init: bool
    override_generation_config: Mapping[str, Any] | None
    logits_processors: list[Any] | None
    enable_lora: bool
    speculative_config: None
    kv_transfer_config: None
    task: str | None
    runner: str | None
    convert: str | None
    pipeline_parallel_size: int
    data_parallel_size: int


OTHER_NAMES = {
    "kvcache_block_size": "block_size",
    "num_kvcache_blocks": "num_gpu_blocks_override",
}

# vLLM's names for values that have another name here.
_OTHER_VALUES: Mapping[str, Mapping[str, str]] = {
    "dtype": {"half": "float16", "float": "float32"},
    "load_format": {"safetensors": "auto"},
    "kv_cache_dtype": {"fp8_e4m3": "fp8"},
}

# Options of vLLM that concern speed, memory or logs, with the values that need no warning.
_WITHOUT_EFFECT: Neutral = {
    "trust_remote_code": (False, True),
    "swap_space": range(1 << 10),
    "disable_log_stats": (False, True),
    "disable_custom_all_reduce": (False, True),
    "enable_chunked_prefill": (True,),
    "cpu_offload_gb": (0,),
    "download_dir": (),
    "max_parallel_loading_workers": (),
    "distributed_executor_backend": ("mp", "uni"),
    "model_impl": ("auto", "vllm"),
    "config_format": ("auto", "hf"),
    "compilation_config": AnyOf(object),
    "served_model_name": AnyOf(object),
}

# Options that would change the results, with the values that do not. A tokenizer may also be named
# as the model is.
_UNSUPPORTED: Neutral = {
    "tokenizer": (),
    "tokenizer_mode": ("auto",),
    "tokenizer_revision": (),
    "revision": (),
    "code_revision": (),
    "hf_config_path": (),
    "skip_tokenizer_init": (False,),
    "override_generation_config": ({},),
    "logits_processors": ([], ()),
    "enable_lora": (False,),
    "speculative_config": (),
    "kv_transfer_config": (),
    "task": ("auto", "generate"),
    "runner": ("auto", "generate"),
    "convert": ("auto", "none"),
    "pipeline_parallel_size": (1,),
    "data_parallel_size": (1,),
}

_MOST_LOGPROBS = 20


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
    for name, value in options.items():
        if name in known:
            continue
        if name == "max_logprobs":
            if value is not None and value not in range(_MOST_LOGPROBS + 1):
                raise _core.UserError(
                    f"max_logprobs is {value!r:.60}; it must be from 0 to {_MOST_LOGPROBS}"
                )
        elif name == "generation_config":
            if value not in (None, "auto", "vllm"):
                raise _core.UserError(
                    f"generation_config is {value!r:.60}; it must be 'auto' or 'vllm'"
                )
        elif name in _UNSUPPORTED:
            path = os.fspath(value) if isinstance(value, os.PathLike) else value
            neutral = {**_UNSUPPORTED, "tokenizer": (model, folder)}
            refuse("LLM", {name: path}, neutral, known)
        elif not (name in _WITHOUT_EFFECT and is_neutral(name, value, _WITHOUT_EFFECT)):
            _warn(f"LLM has no option '{name}', which is ignored{did_you_mean(name, known)}")
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
    """An option's value as the engine takes it: paths and vLLM's names are converted."""
    if name in ("rope_scaling", "hf_overrides") and not isinstance(value, str):
        if not isinstance(value, Mapping):
            raise TypeError(f"{name} is {value!r:.60}; it must be a dictionary or its JSON")
        try:
            return json.dumps(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name} cannot be written as JSON: {error}") from None
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    others = _OTHER_VALUES.get(name, {})
    return others.get(text, text) if isinstance(text, str) else text


def with_given_names(error: Exception, options: Mapping[str, object]) -> Exception:
    """The same error with the names that the caller has used."""
    text = str(error)
    for other, name in OTHER_NAMES.items():
        if other in options:
            text = re.sub(rf"\b{name}\b", other, text)
    return type(error)(text)


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=4)  # the caller of LLM()
