from nanovllm._core import Sequence, SequenceStatus

__all__ = ["Sequence", "SequenceStatus"]
