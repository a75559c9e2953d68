"""nano-vLLM's modules of this name: the engine's own classes, to look at and to experiment with a
scheduler without a model (examples/scheduler_by_hand.py)."""
