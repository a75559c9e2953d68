from nanovllm._core import Block, BlockManager

__all__ = ["Block", "BlockManager"]
