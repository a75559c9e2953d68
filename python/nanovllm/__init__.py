"""nano-vLLM in C++: language models from Hugging Face checkpoint folders.

    from nanovllm import LLM, SamplingParams
    llm = LLM("models/tiny-tales")
    llm.generate(["Once upon a time"], SamplingParams(temperature=0.6, max_tokens=64))[0]["text"]
"""

import nanovllm._absent
from nanovllm._core import EngineDead, UserError, __version__
from nanovllm.inputs import TextPrompt, TokensPrompt
from nanovllm.llm import LLM
from nanovllm.options import EngineOptions
from nanovllm.outputs import (
    CompletionOutput,
    EngineStats,
    Logprob,
    RequestMetrics,
    RequestOutput,
    StreamPiece,
)
from nanovllm.sampling_params import SamplingParams
from nanovllm.structured_outputs import GuidedDecodingParams, StructuredOutputsParams
from nanovllm.tokenizer import Tokenizer

__all__ = [
    "LLM",
    "CompletionOutput",
    "EngineDead",
    "EngineOptions",
    "EngineStats",
    "GuidedDecodingParams",
    "Logprob",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "StreamPiece",
    "StructuredOutputsParams",
    "TextPrompt",
    "Tokenizer",
    "TokensPrompt",
    "UserError",
    "__version__",
]
