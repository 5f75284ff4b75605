"""An EAGLE-3 draft on a torch device: passes of fixed widths over rings that stay there, captured
as graphs on CUDA.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from backend.engines.eagle3.checkpoint import Checkpoint
from backend.engines.eagle3.ring import Eagle3Network, call_seconds
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

#: Idle networks that wait, with their graphs, for the next texts.
IDLE = 8


class TorchDraft:
    """A network on a device. Texts share its weights and the buffers of each width, for passes
    never run at once.
    """

    def __init__(self, checkpoint: Checkpoint, device: str, capture: Capture | None = None) -> None:
        self.checkpoint, self.device = checkpoint, torch.device(device)
        self.shape = checkpoint.network.to(self.device).shape
        self.capture = capture or capture_for(self.device)
        self.tensors = {width: self._tensors(width) for width in WIDTHS}
        self.idle: list[TorchNetwork] = []
        self.seconds = 0.0
        self.seconds = call_seconds(self.open(), WIDTHS)

    @torch.inference_mode()
    def _tensors(self, width: int) -> PassTensors:
        shape, columns = self.shape, self.shape.slots + 1 + width
        shapes = [(width,), (width,), (width,)]
        shapes += [(width, shape.states), (width, shape.hidden), (width, columns)]
        # Logits [V'] and state [D] beside one another.
        result = torch.zeros(1, shape.vocabulary + shape.hidden, device=self.device)
        return PassTensors(width, shapes, (result,), torch.float32)

    @torch.inference_mode()
    def open(self) -> "TorchNetwork":
        """It, for a new text, with captured passes; nobody else's until it is closed."""
        with current(self.device):
            network = self.idle.pop() if self.idle else TorchNetwork(self)
            network.begin()
        return network


class TorchNetwork(Eagle3Network):
    """Its ring [2, kv_heads, slots + 1, d] lies on the device, and passes are captured over it."""

    def __init__(self, draft: TorchDraft) -> None:
        super().__init__(draft.checkpoint, draft.seconds)
        shape, self._draft, self._lent = self.shape, draft, False
        size = (2, shape.kv_heads, shape.slots + 1, shape.head_dim)
        self._ring = torch.zeros(size, device=draft.device)
        # The largest first: the others fit into its memory.
        self._runs: dict[int, Run] = {
            width: draft.capture(partial(self._compute, draft.tensors[width]))
            for width in reversed(WIDTHS)
        }

    def _compute(self, tensors: PassTensors) -> None:
        tokens, positions, slots, states, own, bias = tensors.inputs
        module = self._draft.checkpoint.network
        logits, state, new = module(
            module.embed(tokens.long()), states, own, positions, bias, *self._ring
        )
        self._ring.index_copy_(2, slots.long(), new)
        torch.cat([logits, state], 1, out=tensors.outputs[0])

    def begin(self) -> None:
        """Forget the last text; what that left in the ring might be NaN."""
        self._ring.zero_()
        self.rewind(0)
        self.seconds, self._lent = self._draft.seconds, True

    @torch.inference_mode()
    def read(
        self, position: int, tokens: Sequence[int], states: HiddenStates | None, *, wanted: bool
    ) -> Logits:
        draft, shape, n = self._draft, self.shape, len(tokens)
        width = next(width for width in WIDTHS if width >= n)
        tensors, padding = draft.tensors[width], width - n
        bias = np.empty((width, shape.slots + 1 + width), np.float32)
        positions = self.place(position, n, bias)
        # Whole numbers, which float32 holds exactly up to 2**24: tokens, positions and slots.
        integers = np.zeros((3, width), np.float32)
        integers[2, :padding] = shape.slots  # the one that nobody sees
        integers[:, padding:] = tokens, positions, positions % shape.slots
        read = np.zeros((width, shape.states), np.float32)
        own = np.zeros((width, shape.hidden), np.float32)
        if states is None:
            own[padding:] = self.state
        else:
            read[padding:] = states
        with current(draft.device):
            tensors.fill(integers, read, own, bias)
            self._runs[width]()
            (result,) = tensors.outputs
            host = host_rows(1, result.shape[1], draft.device)
            host.copy_(result, non_blocking=True)
            wait(draft.device)
        logits, self.state = np.split(host.numpy(), [shape.vocabulary], axis=1)
        return logits

    def close(self) -> None:
        if self._lent and len(self._draft.idle) < IDLE:
            self._draft.idle.append(self)
        self._lent = False
