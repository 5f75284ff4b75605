"""An EAGLE-3 draft on a torch device: passes of fixed widths over rings that stay there, captured
as graphs on CUDA.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from backend.engines.eagle3.checkpoint import Checkpoint
from backend.engines.eagle3.ring import bias_of, call_seconds
from backend.engines.torch.captured import (
    Capture,
    PassTensors,
    Run,
    capture_for,
    current,
    host_rows,
    wait,
)
from backend.types import HiddenStates, Logits

#: Rows that passes are padded to: no drafter feeds more at once.
WIDTHS = (1, 2, 4, 8, 16, 32, 64)

#: Idle rings that wait, with their graphs, for the next texts.
IDLE = 8


class TorchDraft:
    """A network whose rings lie beside it; they share its weights and the buffers of each width,
    for passes never run at once.
    """

    def __init__(self, checkpoint: Checkpoint, device: str, capture: Capture | None = None) -> None:
        self.device = torch.device(device)
        self.network = checkpoint.network.to(self.device)
        self.shape = self.network.shape
        self.layers, self.vocabulary = checkpoint.layers, checkpoint.vocabulary
        self.capture = capture or capture_for(self.device)
        self._tensors: dict[int, PassTensors] = {}
        self.idle: list[TorchRing] = []
        self.seconds = 0.0
        self.seconds = call_seconds(self, WIDTHS)

    @torch.inference_mode()
    def open(self) -> "TorchRing":
        """An empty ring whose passes are captured, nobody else's until it is closed."""
        with current(self.device):
            ring = self.idle.pop() if self.idle else TorchRing(self)
            ring.rows.zero_()
        ring.lent = True
        return ring

    def tensors(self, rows: int) -> PassTensors:
        """Those of the next width, at most the widest."""
        width = next(width for width in WIDTHS if width >= rows)
        if width not in self._tensors:
            shape, columns = self.shape, self.shape.slots + 1 + width
            shapes = [(width,), (width,), (width,)]
            shapes += [(width, shape.states), (width, shape.hidden), (width, columns)]
            # Logits [V'] and state [D] beside one another.
            result = torch.zeros(1, shape.vocabulary + shape.hidden, device=self.device)
            self._tensors[width] = PassTensors(width, shapes, (result,), torch.float32)
        return self._tensors[width]


class TorchRing:
    """A ring, [2, kv_heads, slots + 1, d], and the passes captured over it;
    `lent` to a text, or idle.
    """

    def __init__(self, draft: TorchDraft) -> None:
        shape, self._draft, self.lent = draft.shape, draft, False
        size = (2, shape.kv_heads, shape.slots + 1, shape.head_dim)
        self.rows = torch.zeros(size, device=draft.device)
        # The largest first: the others fit into its memory.
        self._runs: dict[int, Run] = {
            width: draft.capture(partial(self._compute, draft.tensors(width)))
            for width in reversed(WIDTHS)
        }

    def _compute(self, tensors: PassTensors) -> None:
        tokens, positions, slots, states, own, bias = tensors.inputs
        embedded = (network := self._draft.network).embed(tokens.long())
        logits, state, new = network(embedded, states, own, positions, bias, *self.rows)
        self.rows.index_copy_(2, slots.long(), new)
        torch.cat([logits, state], 1, out=tensors.outputs[0])

    @torch.inference_mode()
    def run(
        self,
        read: HiddenStates,
        tokens: Sequence[int],
        positions: NDArray[np.int64],
        visible: NDArray[np.bool_],
        *,
        own: bool,
    ) -> tuple[Logits, HiddenStates]:
        draft, n, slots = self._draft, len(tokens), self._draft.shape.slots
        tensors = draft.tensors(n)
        more = tensors.width - n
        # Whole numbers, which float32 holds exactly up to 2**24: tokens, positions and slots.
        integers = np.zeros((3, tensors.width), np.float32)
        integers[2, :more] = slots  # the one that nobody sees
        integers[:, more:] = tokens, positions, positions % slots
        states = np.zeros((tensors.width, draft.shape.states), np.float32)
        given = np.zeros((tensors.width, draft.shape.hidden), np.float32)
        (given if own else states)[more:] = read
        with current(draft.device):
            tensors.fill(integers, states, given, bias_of(visible, tensors.width))
            self._runs[tensors.width]()
            (result,) = tensors.outputs
            host = host_rows(1, result.shape[1], draft.device)
            host.copy_(result, non_blocking=True)
            wait(draft.device)
        logits, state = np.split(host.numpy(), [draft.shape.vocabulary], axis=1)
        return logits, state

    def close(self) -> None:
        if self.lent and len(self._draft.idle) < IDLE:
            self._draft.idle.append(self)
        self.lent = False
