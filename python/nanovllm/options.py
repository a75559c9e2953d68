"""The options of LLM. nanovllm/base/config.h describes each field; help() shows those texts."""

from __future__ import annotations

import difflib
import re
import textwrap
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from nanovllm import _core
from nanovllm._binary import BINARY
from nanovllm._files import read_json


class EngineOptions(TypedDict, total=False):
    """The options of LLM. Zero or empty means that the value is chosen at the start."""

    # nano-vLLM's
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    gpu_memory_utilization: float
    tensor_parallel_size: int
    enforce_eager: bool
    kvcache_block_size: int
    num_kvcache_blocks: int
    # vLLM's
    device: str
    dtype: str
    load_format: str
    kv_cache_memory_bytes: int
    block_size: int
    num_gpu_blocks_override: int
    enable_prefix_caching: bool
    async_scheduling: bool
    step_timeout: float
    threads: int
    seed: int
    logprobs_mode: str
    trace: str
    worker_path: str


OTHER_NAMES = {
    "kvcache_block_size": "block_size",
    "num_kvcache_blocks": "num_gpu_blocks_override",
}


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


def to_engine_fields(model: str, options: Mapping[str, object]) -> dict[str, object]:
    """The fields of EngineConfig. Gives warnings for options that do not exist and for a context
    that is longer than the model's, which is then used instead."""
    fields: dict[str, object] = {"worker_path": BINARY}
    for name, value in options.items():
        if name not in EngineOptions.__annotations__:
            _warn(f"LLM has no option '{name}', which is ignored{_suggestion(name)}")
        elif not (name == "num_kvcache_blocks" and value == -1):
            fields[OTHER_NAMES.get(name, name)] = value
    asked = fields.get("max_model_len")
    if isinstance(asked, int):
        longest = read_json(Path(model, "config.json")).get("max_position_embeddings", asked)
        if isinstance(longest, int) and asked > longest > 0:
            _warn(
                f"max_model_len {asked} is lowered to {longest}, the model's own limit "
                "(max_position_embeddings)"
            )
            fields["max_model_len"] = longest
    return fields


def _suggestion(name: str) -> str:
    near = difflib.get_close_matches(name, EngineOptions.__annotations__, n=1, cutoff=0.7)
    return f"; did you mean '{near[0]}'?" if near else ""


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=4)  # the caller of LLM()
