"""Caches of a model with convolutions over the last rows, whose states windows.py describes."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.engines.cache import Pass
from backend.engines.openvino.store import OpenVINOStore
from backend.engines.openvino.windows import WINDOW
from backend.types import Arrays, Capabilities


def store_of(model: Any, able: Capabilities, window: int) -> OpenVINOStore:
    """An empty cache of a compiled model; `window`: see OpenVINOStore."""
    kind = RecurrentStore if able.recurrent else OpenVINOStore
    return kind(model.create_infer_request(), window)


class RecurrentStore(OpenVINOStore):
    """New rows are a chain. Rows of attention that are no longer wanted stay as
    holes, as everywhere on this engine.

    The windows hold the states behind each of `width` rows of the last pass, which began behind
    `begun` tokens, and where it began.
    """

    def __init__(self, request: Any, window: int) -> None:
        super().__init__(request, window)
        self._begun = self._width = 0
        self._kept: tuple[int, Arrays] = (0, {})  # the checkpoint's tokens and states

    def inputs(self, work: Pass) -> dict[str, Any]:
        behind = int(work.positions[0])
        column = self._column(behind) if work.held else 0
        self._begun, self._width = behind, len(work.tokens)
        return {**super().inputs(work), "kept": np.array([column])}

    def _column(self, tokens: int) -> int:
        """Where in the windows the state behind so many tokens begins. Raises RuntimeError if none
        was kept there.
        """
        if 0 <= tokens - self._begun <= self._width:
            return tokens - self._begun
        if tokens != self._kept[0]:
            raise RuntimeError(f"no state behind {tokens} tokens: a pass ran from {self._begun}")
        self._begin(*self._kept)
        return 0

    def _begin(self, tokens: int, states: Arrays) -> None:
        """Begin with these states, behind so many tokens."""
        import openvino

        for state in self._windows():
            state.state = openvino.Tensor(states[state.name][:, :, 0])
        self._begun, self._width = tokens, 0

    def _behind(self, tokens: int) -> Arrays:
        """Copies of the states there, [1, D, 1, L], which no cut along the rows' axis takes apart.
        Raises RuntimeError as above.
        """
        column = tokens - self._begun
        if 0 <= column <= self._width:
            return {state.name: self._cut(state.state.data, column) for state in self._windows()}
        if tokens != self._kept[0]:
            raise RuntimeError(f"no state behind {tokens} tokens: a pass ran from {self._begun}")
        return self._kept[1]

    def _cut(self, window: NDArray[np.float32], column: int) -> NDArray[np.float32]:
        width = window.shape[2] - self._width
        return window[:, :, None, column : column + width].copy()

    def _windows(self) -> Iterator[Any]:
        return (state for state in self._request.query_state() if state.name.startswith(WINDOW))

    def checkpoint(self, rows: int) -> None:
        """See Store."""
        self._kept = (rows, self._behind(rows))

    def read(self, places: NDArray[np.int64]) -> Arrays:
        return {**super().read(places), **self._behind(len(places))}

    def write(self, arrays: Arrays) -> None:
        states = {name: array for name, array in arrays.items() if name.startswith(WINDOW)}
        if set(states) != {state.name for state in self._windows()}:
            raise RuntimeError("arrays of another model")
        rows = {name: array for name, array in arrays.items() if name not in states}
        super().write(rows)
        self._begin(next(iter(rows.values())).shape[2], states)
