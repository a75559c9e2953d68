from nanovllm._core import Scheduler

__all__ = ["Scheduler"]
