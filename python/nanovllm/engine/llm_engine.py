from nanovllm.llm import LLM as LLMEngine

__all__ = ["LLMEngine"]
