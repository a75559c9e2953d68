"""The progress bar of LLM.generate: tqdm's, with the speed of prefill and decode."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class Bar:
    def __init__(
        self,
        total: int,
        use_tqdm: bool | Callable[..., Any],
        num_tokens: Callable[[], tuple[int, int]],
    ) -> None:
        """`num_tokens`: how many tokens of prefill and decode the engine has computed."""
        self._bar: Any = None
        if not use_tqdm:
            return
        make: Any = use_tqdm
        if not callable(use_tqdm):
            from tqdm.auto import tqdm  # takes a tenth of a second, so only if a bar is shown

            make = tqdm
        self._bar = make(total=total, desc="Generating", dynamic_ncols=True)
        self._num_tokens = num_tokens
        self._before = num_tokens()
        self._since = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, num_ended: int) -> None:
        if self._bar is None:
            return
        seconds = max(time.perf_counter() - self._since, 1e-9)
        speeds = {
            name: f"{(count - before) / seconds:.0f}tok/s"
            for name, count, before in zip(("Prefill", "Decode"), self._num_tokens(), self._before)
        }
        self._bar.set_postfix(speeds, refresh=False)
        self._bar.update(num_ended)
