"""Passes of several sequences over one infer request, whose states hold all of their caches."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.engines.batch import BatchPass
from backend.types import Arrays, HiddenStates, Logits

HIDDEN = np.float32(np.finfo(np.float32).min)


class OpenVINOBatch:
    """`window`: the number of positions that sliding layers see; 0: there are none."""

    def __init__(self, request: Any, requests: int, window: int) -> None:
        inputs = {port.any_name for port in request.model_inputs}
        self._request: Any = request
        self._window = window
        # Where only some layers slide, those have a bias of their own.
        self._sliding = "sliding_bias" if "sliding_bias" in inputs else "attention_bias"
        self._beam = np.arange(requests, dtype=np.int32)
        request.reset_state()

    def run(self, batch: BatchPass) -> tuple[Logits, HiddenStates]:
        biases = {"attention_bias": _bias(batch.visible)}
        if self._window:
            biases[self._sliding] = _bias(batch.within(self._window))
        self._request.infer(
            {
                "input_ids": batch.tokens,
                "position_ids": batch.positions,
                "beam_idx": self._beam,
                "rows": batch.rows,
                **biases,
            },
            share_inputs=True,
            share_outputs=True,
        )
        logits, hidden = (self._request.get_output_tensor(i).data for i in (0, 1))
        return logits, hidden

    def gather(self, index: NDArray[np.int64]) -> None:
        import openvino

        for state in self._request.query_state():
            held = state.state.data
            rows = np.empty((*held.shape[:2], index.shape[1], held.shape[3]), held.dtype)
            # Whole rows of one sequence at a time: indexing all at once goes number by number.
            for own, places, source in zip(rows, index, held, strict=True):
                np.take(source, places, axis=1, out=own, mode="clip")
            state.state = openvino.Tensor(rows)

    def load(self, arrays: Arrays, requests: int) -> None:
        import openvino

        for state in self._request.query_state():
            rows = np.repeat(arrays[state.name], requests, axis=0)
            state.state = openvino.Tensor(np.ascontiguousarray(rows))

    def close(self) -> None:
        self._request = None


def _bias(visible: NDArray[np.bool_]) -> NDArray[np.float32]:
    """What is added to scores, float32 [b, 1, n, P + n]: 0 visible, the f32 minimum hidden."""
    return np.where(visible, np.float32(0), HIDDEN)[:, None]
