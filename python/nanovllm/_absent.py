"""Importing a module of nano-vLLM or vLLM that is not here says what takes its place."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

_ABSENT = {
    "engine.async_llm_engine": "LLM.stream in a thread takes the place of AsyncLLMEngine, as"
    " examples/async_stream.py shows",
    "engine.model_runner": "ModelRunner is C++, nanovllm/runtime/model_runner.h",
    "layers": "attention, linear, layernorm, rotary_embedding, activation, embed_head and sampler are"
    " C++ and CUDA code, declared in nanovllm/ops/backend.h",
    "models": "the forward pass of all architectures is C++, nanovllm/model/forward.cpp",
    "utils": "context is an argument, Step in nanovllm/ops/step.h, and loader is C++,"
    " nanovllm/model/weights.cpp",
}


class _Finder:
    """Python asks it after all other finders, so only for modules that do not exist."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        where = _ABSENT.get(name.removeprefix("nanovllm."))
        if where and name.startswith("nanovllm."):
            text = f"{name} has no counterpart in Python: {where}; see docs/from-nano-vllm.md"
            raise ImportError(text, name=name)


sys.meta_path.append(_Finder)
