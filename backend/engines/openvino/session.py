"""A text in the states of an infer request, whose passes it runs.

States only grow: rejected rows, and those that a cut forgets, stay as holes that masks hide, until
there are so many of them that one copy of the states costs less.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.engines.session import HIDDEN, Session, visibility
from backend.types import Arrays, Guesses, HiddenStates, Layers, Logits

#: Holes are taken out when there are more of them than this, and than a quarter of the text.
HOLES = 96

_BEAM = np.zeros(1, dtype=np.int32)


def states_of(layer: int) -> str:
    """The name of the output with what this layer is given, f32 [1, n, D]."""
    return f"states.{layer}"


class OpenVINOSession(Session):
    """`window`: the positions that sliding layers see; 0: there are none."""

    def __init__(
        self,
        request: Any,
        max_context: int,
        window: int,
        guesses: Guesses = "trees",
    ) -> None:
        super().__init__(max_context, guesses)
        self._request: Any = request
        self._window = window
        # Where only some layers slide, those have a bias of their own.
        names = {port.any_name for port in request.model_inputs}
        self._sliding = "sliding_bias" if "sliding_bias" in names else "attention_bias"
        self._seen = np.zeros(1024, dtype=np.bool_)  # of each cached row: whether it is context
        self._rows = 0  # in the states, holes included
        request.reset_state()

    def forward(self, tokens: Sequence[int], parents: Sequence[int], rows: Sequence[int]) -> Logits:
        tree, n = self._tree(tokens, parents, rows), len(tokens)
        if not self.length and self._rows:
            self._request.reset_state()
            self._rows = 0
        elif self._rows - self.length > max(HOLES, self.length // 4):
            self._take_out_holes()
        context, positions = self._seen[: self._rows], tree.depths + self.length
        biases = {"attention_bias": _bias(visibility(context, tree, positions))}
        if self._window:
            near = visibility(context, tree, positions, self._window)
            biases[self._sliding] = _bias(near)
        inputs = {
            "input_ids": np.array([tokens], np.int64),
            "position_ids": positions[None],
            "beam_idx": _BEAM,
            "rows": np.array(rows, np.int64),
            **biases,
        }
        self._request.infer(inputs, share_inputs=True, share_outputs=True)
        self._rows += n
        if self._rows > len(self._seen):
            self._seen = np.concatenate([self._seen, np.zeros(self._rows, np.bool_)])
        self._seen[self._rows - n : self._rows] = False
        self._pending(tokens, parents)
        return self._request.get_output_tensor(0).data[0].copy()

    def hidden_states(self, layers: Layers) -> HiddenStates:
        states = [self._request.get_tensor(states_of(layer)).data[0] for layer in layers]
        return np.concatenate(states, 1)

    def _keep(self, rows: Sequence[int]) -> None:
        start = self._rows - len(self._new)
        self._seen[[start + row for row in rows]] = True

    def _cut(self, length: int) -> None:
        self._seen[np.flatnonzero(self._seen[: self._rows])[length:]] = False

    def _take_out_holes(self) -> None:
        """Copy the states' rows that are context, and no others."""
        import openvino

        places = np.flatnonzero(self._seen[: self._rows])
        for state in self._request.query_state():
            rows = state.state.data
            copy = np.empty((*rows.shape[:2], len(places), rows.shape[3]), rows.dtype)
            # Whole rows at a time: indexing would go number by number.
            np.take(rows, places, axis=2, out=copy, mode="clip")
            state.state = openvino.Tensor(copy)
        self._rows = len(places)
        self._seen[: self._rows] = True

    def _save(self, length: int) -> Arrays:
        places = np.flatnonzero(self._seen[: self._rows])[:length]
        return {
            state.name: np.take(state.state.data, places, axis=2, mode="clip")
            for state in self._request.query_state()
        }

    def _load(self, length: int, arrays: Arrays) -> None:
        import openvino

        states = {state.name: state for state in self._request.query_state()}
        if set(states) != set(arrays):
            raise RuntimeError("another model's arrays")
        # One buffer for all: fresh memory for each would cost more than copying does.
        buffers: dict[Any, Any] = {}
        for name, array in arrays.items():
            kind = (array.dtype, array.shape)
            if kind not in buffers:
                buffers[kind] = openvino.Tensor(np.empty(array.shape, array.dtype))
            buffers[kind].data[:] = array
            states[name].state = buffers[kind]
        self._rows = length
        self._seen = np.ones(max(self._rows, len(self._seen)), np.bool_)

    def close(self) -> None:
        self._request = None


def _bias(visible: NDArray[np.bool_]) -> NDArray[np.float32]:
    """What is added to scores, float32 [1, 1, n, P + n]."""
    return np.where(visible, np.float32(0), HIDDEN)[None, None]
