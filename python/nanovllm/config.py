from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from nanovllm import _core
from nanovllm._unsupported import did_you_mean
from nanovllm.options import OTHER_NAMES, EngineOptions, by_field, with_given_names

if TYPE_CHECKING:
    from typing_extensions import Unpack

# nano-vLLM's values for options whose value the engine chooses when it loads a model.
_WITHOUT_MODEL = {"max_num_batched_tokens": 16384, "max_model_len": 4096, "num_kvcache_blocks": -1}


class Config(SimpleNamespace):
    """The options of LLM as attributes with nano-vLLM's names, for a Scheduler without a model.

    `model` may be empty; with a checkpoint folder, `hf_config` has the values of its config.json,
    `eos` is its end token (or tokens), and its context limits max_model_len. Raises TypeError for
    an option that LLM does not have, or for a value of a wrong type, and UserError for a value out
    of range. Without a model, a block may have any number of tokens.
    """

    model: str
    eos: int | list[int]
    max_model_len: int
    hf_config: Any

    def __init__(
        self,
        model: str | os.PathLike[str] = "",
        *,
        eos: int | list[int] = -1,
        hf_config: Any = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        for name in options:
            if name not in EngineOptions.__annotations__:
                near = did_you_mean(name, EngineOptions.__annotations__)
                raise TypeError(
                    f"Config has no option '{name}'{near or '; EngineOptions lists all'}"
                )
        given = by_field(options)
        nano_vllms = {ours: theirs for theirs, ours in OTHER_NAMES.items()}
        limited = {n: value for n, value in given.items() if model or n != "block_size"}
        try:
            fields = _core.engine_fields(given)
            _core.validate_engine(limited)
        except (TypeError, ValueError) as error:
            raise with_given_names(error, options) from None
        values = {nano_vllms.get(n, n): value for n, value in fields.items()}
        for name, value in _WITHOUT_MODEL.items():
            values[name] = values[name] or value
        super().__init__(model=os.fspath(model), eos=eos, hf_config=hf_config, **values)
        if model:
            self._read_model()

    def _read_model(self) -> None:
        with open(os.path.join(self.model, "config.json"), encoding="utf-8") as file:
            self.hf_config = self.hf_config or json.load(
                file, object_hook=lambda values: SimpleNamespace(**values)
            )
        context: Any = getattr(self.hf_config, "max_position_embeddings", self.max_model_len)
        self.max_model_len = min(self.max_model_len, context)
        if self.eos == -1:
            self.eos = getattr(self.hf_config, "eos_token_id", -1)
