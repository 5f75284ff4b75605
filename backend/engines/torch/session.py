"""One sequence over a transformers model: its Session, whatever cache its passes run over."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from backend.engines.tree import depths, require_path
from backend.errors import DerbyError
from backend.types import Arrays, Capabilities, HiddenStates, Logits


@dataclass(frozen=True, slots=True)
class Calling:
    """How this model wants to be called.

    `window` is the number of positions that a sliding-window layer sees, itself included (None:
    no such layer); `by_layer_type` says that it takes one mask per layer type. `positions` is
    False where the model counts them itself, from the rows in the cache.
    """

    device: torch.device
    dtype: torch.dtype
    capabilities: Capabilities
    window: int | None = None
    by_layer_type: bool = False
    positions: bool = True


class Passes(Protocol):
    """A session's rows on the device, the context's first, and what runs passes behind them. Called
    in inference mode.
    """

    def run(
        self,
        start: int,
        tokens: Sequence[int],
        parents: tuple[int, ...],
        rows: Sequence[int],
    ) -> tuple[Logits, torch.Tensor]:
        """Run n tokens behind the first `start` rows: logits [len(rows), V] and hidden states
        [n, D], which no later pass overwrites.
        """
        ...

    def keep(self, start: int, rows: Sequence[int]) -> None:
        """Of the rows behind `start`, keep these ascending ones."""
        ...

    def truncate(self, length: int) -> None:
        """Forget every row after the first `length`."""
        ...

    def export(self, length: int) -> Arrays:
        """Copies of the first `length` rows in host memory; bf16 as its bits, int16."""
        ...

    def load(self, length: int, arrays: Arrays) -> None:
        """Take over what `export` gave; there must be no rows."""
        ...

    def close(self) -> None:
        """Give back what is lent."""
        ...


class TorchSession:
    """Session over a transformers causal LM."""

    def __init__(self, passes: Passes, capabilities: Capabilities) -> None:
        self._passes: Passes | None = passes
        self._capabilities = capabilities
        self._length = 0
        self._pending: tuple[int, ...] = ()
        self._hidden: Any = None  # the last pass's hidden states, a tensor [n, D]

    @property
    def length(self) -> int:
        return self._length

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int], parents: Sequence[int], rows: Sequence[int]) -> Logits:
        """See Session. Raises DerbyError when a position lies beyond the model's context."""
        passes = self._opened()
        if self._pending:
            raise RuntimeError("forward before keep: the rows of the last pass are still pending")
        n, start, links = len(tokens), self._length, tuple(parents)
        _check_tree(n, links, rows)
        self._check_room(start + int(depths(links).max()) + 1)
        try:
            logits, self._hidden = passes.run(start, tokens, links, rows)
        except BaseException:
            passes.truncate(start)
            raise
        self._pending = links
        return logits

    @torch.inference_mode()
    def hidden_states(self) -> HiddenStates:
        if self._hidden is None:
            raise RuntimeError("no pass has been run yet")
        return self._hidden.float().cpu().numpy()

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        passes = self._opened()
        require_path(rows, self._pending)
        passes.keep(self._length, rows)
        self._length += len(rows)
        self._pending = ()

    def truncate(self, length: int) -> None:
        passes = self._opened()
        if not 0 <= length <= self._length:
            raise RuntimeError(f"cannot truncate {self._length} tokens to {length}")
        passes.truncate(length)
        self._length = length
        self._pending = ()

    @torch.inference_mode()
    def export(self, length: int) -> Arrays:
        if self._pending or not 0 <= length <= self._length:
            raise RuntimeError(f"export of {length} of {self._length} tokens")
        return self._opened().export(length) if length else {}

    @torch.inference_mode()
    def load(self, length: int, arrays: Arrays) -> None:
        passes = self._opened()
        if self._length or self._pending or (length and not arrays):
            raise RuntimeError("load into a session that is not empty, or of another model")
        if length:
            passes.load(length, arrays)
        self._length = length

    def close(self) -> None:
        if self._passes is not None:
            self._passes.close()
        self._passes = None
        self._hidden = None
        self._length = 0
        self._pending = ()

    def _opened(self) -> Passes:
        if self._passes is None:
            raise RuntimeError("the session is closed")
        return self._passes

    def _check_room(self, context: int) -> None:
        limit = self._capabilities.max_context
        if context > limit:
            raise DerbyError(
                f"The text would be {context} tokens long and this model reads at most {limit}: "
                "shorten the prompt or ask for fewer new tokens."
            )


def to_bits(rows: torch.Tensor) -> NDArray[Any]:
    """A tensor of host memory as an array of its own; bf16, which numpy lacks, as its bits."""
    bits = rows.view(torch.int16) if rows.dtype == torch.bfloat16 else rows
    return bits.numpy().copy()


def from_bits(array: NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    """The tensor that `to_bits` made an array of, a copy in host memory."""
    rows = torch.from_numpy(np.array(array))
    return rows.view(dtype) if rows.dtype == torch.int16 else rows.to(dtype)


def _check_tree(n: int, parents: tuple[int, ...], rows: Sequence[int]) -> None:
    if n == 0 or len(parents) != n:
        raise RuntimeError(f"{n} tokens with {len(parents)} parent links")
    if not all(-1 <= parent < i for i, parent in enumerate(parents)):
        raise RuntimeError(f"parent links {parents} do not point backwards")
    if not all(0 <= row < n for row in rows):
        raise RuntimeError(f"rows {tuple(rows)} of {n}")
