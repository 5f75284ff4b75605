"""The trained head on a torch device: passes of fixed widths over rings that stay on the device,
captured as graphs on CUDA.

A pass's inputs go there in one copy and its results come back in one, which is waited for.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from backend.engines.heads.draft import Floats, bias_of, call_seconds
from backend.engines.heads.file import HeadFile
from backend.engines.heads.network import TorchHead, torch_head
from backend.engines.torch.graphs import (
    Capture,
    PassTensors,
    Run,
    capture_for,
    current,
    fetch,
    host_rows,
    wait,
)
from backend.models.files import Say
from backend.types import HiddenStates, Logits, ModelSpec

#: Rows that passes are padded to: no drafter feeds more at once.
WIDTHS = (1, 2, 4, 8, 16, 32, 64)

#: Rings that are kept, with their graphs, for the next texts.
IDLE = 8


def open_device_head(file: HeadFile, target: ModelSpec, place: str, say: Say) -> "DeviceHead":
    """The head of `target`, float32, on the device that torch calls `place`."""
    device = torch.device(place)
    module = torch_head(file, target, say).to(device).eval()
    return DeviceHead(module, file.tokens, capture_for(device))


class DeviceHead:
    """A TorchHead whose rings lie beside it; they share its weights and the buffers of each width,
    for passes never run at once.
    """

    def __init__(self, module: TorchHead, vocabulary: NDArray[np.int64], capture: Capture) -> None:
        self.shape = module.shape
        self.vocabulary = vocabulary
        self.module = module
        self.capture = capture
        self.device = module.output.device
        self._tensors: dict[int, PassTensors] = {}
        self.idle: list[DeviceRing] = []
        self.seconds = 0.0
        self.seconds = call_seconds(self, WIDTHS)

    @torch.inference_mode()
    def open(self) -> "DeviceRing":
        """An empty ring whose passes are captured, nobody else's until it is closed."""
        with current(self.device):
            ring = self.idle.pop() if self.idle else DeviceRing(self)
            ring.rows.zero_()
        ring.lent = True
        return ring

    def tensors(self, rows: int) -> PassTensors:
        """Those of the next width, at most the widest."""
        width = next(width for width in WIDTHS if width >= rows)
        if width not in self._tensors:
            hidden, columns = self.shape.hidden, self.shape.slots + 1 + width
            shapes = [(width,), (width,), (width,), (width, hidden), (width, columns)]
            # Logits [V'] and hidden state [D] beside one another.
            result = torch.zeros(1, len(self.module.output) + hidden, device=self.device)
            self._tensors[width] = PassTensors(width, shapes, (result,), torch.float32)
        return self._tensors[width]


class DeviceRing:
    """A ring, keys and values [2, layers, kv_heads, slots + 1, d], and the passes captured over it;
    `lent` to a text, or idle.
    """

    def __init__(self, head: DeviceHead) -> None:
        shape, self._head, self.lent = head.shape, head, False
        size = (2, shape.layers, shape.kv_heads, shape.slots + 1, shape.head_dim)
        self.rows = torch.zeros(size, device=head.device)
        # The largest first: the others fit into its memory.
        self._runs: dict[int, Run] = {
            width: head.capture(partial(self._compute, head.tensors(width)))
            for width in reversed(WIDTHS)
        }

    def _compute(self, tensors: PassTensors) -> None:
        tokens, positions, slots, features, bias = tensors.inputs
        logits, state, *new = self._head.module(
            features, tokens.long(), positions.long(), *self.rows, bias
        )
        self.rows.index_copy_(3, slots.long(), torch.stack(new))
        torch.cat([logits, state], 1, out=tensors.outputs[0])

    @torch.inference_mode()
    def run(
        self,
        features: Floats,
        tokens: Sequence[int],
        positions: NDArray[np.int64],
        visible: NDArray[np.bool_],
    ) -> tuple[Logits, HiddenStates]:
        head, n, slots = self._head, len(tokens), self._head.shape.slots
        tensors = head.tensors(n)
        more = tensors.width - n
        # Whole numbers, which float32 holds exactly up to 2**24: tokens, positions and slots.
        whole = np.zeros((3, tensors.width), np.float32)
        whole[2, :more] = slots  # the one that nobody sees
        whole[:, more:] = tokens, positions, positions % slots
        states = np.pad(features, ((more, 0), (0, 0)))
        with current(head.device):
            tensors.fill(whole, states, bias_of(visible, tensors.width))
            self._runs[tensors.width]()
            (result,) = tensors.outputs
            found = host_rows(1, result.shape[1], head.device)
            fetch(found, result)
            wait(head.device)
        logits, state = np.split(found.numpy(), [len(head.module.output)], axis=1)
        return logits, state

    def close(self) -> None:
        if self.lent and len(self._head.idle) < IDLE:
            self._head.idle.append(self)
        self.lent = False
