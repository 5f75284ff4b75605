"""A cache in the states of an infer request, whose passes it runs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.engines.cache import Pass, Store
from backend.types import LAST_LAYER, Arrays, HiddenStates, Layers, Logits


class OpenVINOStore(Store):
    """Taking rows out means copying every state, so that holes stay until it pays.

    `window`: the number of positions that sliding layers see; 0: there are none.
    """

    in_place = False

    def __init__(self, request: Any, window: int) -> None:
        inputs = {port.any_name for port in request.model_inputs}
        self._request: Any = request
        self._window = window
        # Where only some layers slide, those have a bias of their own.
        self._sliding = "sliding_bias" if "sliding_bias" in inputs else "attention_bias"
        self._beam = np.zeros(1, dtype=np.int32)
        request.reset_state()

    def run(self, work: Pass) -> Logits:
        if work.held == 0:
            self._request.reset_state()
        self._request.infer(self.inputs(work), share_inputs=True, share_outputs=True)
        return self._request.get_output_tensor(0).data[0].copy()

    def inputs(self, work: Pass) -> dict[str, Any]:
        """What the graph is given, by the names that export.py documents."""
        bias = work.bias()
        biases = {"attention_bias": bias}
        if self._window:
            biases[self._sliding] = work.within(self._window, bias)
        return {
            "input_ids": work.tokens[None],
            "position_ids": work.positions[None],
            "beam_idx": self._beam,
            "rows": work.rows,
            **biases,
        }

    def hidden_states(self, layers: Layers) -> HiddenStates:
        if layers != LAST_LAYER:
            raise RuntimeError(f"no hidden states {layers}")
        return self._request.get_output_tensor(1).data[0]

    def gather(self, start: int, index: NDArray[np.int64]) -> None:
        """See Store; states are copied whole, so `start` is always 0."""
        import openvino

        for state in self._request.query_state():
            held = state.state.data
            rows = np.empty((*held.shape[:2], len(index), held.shape[3]), held.dtype)
            # Whole rows at a time: indexing would go number by number.
            np.take(held, index + start, axis=2, out=rows, mode="clip")
            state.state = openvino.Tensor(rows)

    def read(self, places: NDArray[np.int64]) -> Arrays:
        m = len(places)
        dense = places[-1] == m - 1
        return {
            state.name: state.state.data[:, :, :m].copy()
            if dense
            else np.ascontiguousarray(state.state.data[:, :, places])
            for state in self._request.query_state()
        }

    def write(self, arrays: Arrays) -> None:
        import openvino

        states = {state.name: state for state in self._request.query_state()}
        if set(states) != set(arrays):
            raise RuntimeError("another model's arrays")
        # One buffer for all: fresh memory for each would cost more than copying does.
        buffers: dict[Any, Any] = {}
        for name, state in states.items():
            array = arrays[name]
            kind = (array.dtype, array.shape)
            if kind not in buffers:
                buffers[kind] = openvino.Tensor(np.empty(array.shape, array.dtype))
            buffers[kind].data[:] = array
            state.state = buffers[kind]

    def close(self) -> None:
        self._request = None
