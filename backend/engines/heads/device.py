"""The trained head on a torch device: passes of fixed widths over rings that stay on the device,
captured as graphs on CUDA.

A pass's inputs go there in one copy and its results come back in one, which is waited for.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from backend.engines.heads.draft import HIDDEN, Floats, step_seconds
from backend.engines.heads.file import HeadFile, HeadShape
from backend.engines.heads.network import TorchHead, torch_head
from backend.engines.torch.graphs import (
    Capture,
    Run,
    capture_for,
    current,
    fetch,
    host_rows,
    staged,
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


class PassTensors:
    """What changes from pass to pass of one width, in one float32 buffer, which holds whole numbers
    up to 2**24 exactly; and the results: logits [V'] and hidden state [D].
    """

    def __init__(self, width: int, shape: HeadShape, vocabulary: int, device: torch.device) -> None:
        self.width = width
        columns = shape.slots + 1 + width
        sizes = [width, width, width, width * shape.hidden, width * columns]
        self.buffer = torch.zeros(sum(sizes), device=device)
        self.tokens, self.positions, self.slots, features, bias = self.buffer.split(sizes)
        self.features = features.view(width, shape.hidden)
        self.bias = bias.view(width, columns)
        self.results = torch.zeros(1, vocabulary + shape.hidden, device=device)

    def fill(
        self,
        features: Floats,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        bias: Floats,
    ) -> None:
        """Rows in front pad the pass: they see themselves alone and go to the slot behind the ring,
        which nobody sees.
        """
        n, width, slots = len(tokens), self.width, self.bias.shape[1] - self.width - 1
        more = width - n
        whole = np.zeros((3, width), np.float32)
        whole[2, :more] = slots
        whole[:, more:] = tokens, positions, positions % slots
        seen = np.full((width, slots + 1 + width), HIDDEN)
        np.fill_diagonal(seen[:, slots + 1 :], 0)
        seen[more:, :slots] = bias[:, :slots]
        seen[more:, slots + 1 + more :] = bias[:, slots:]
        padded = np.zeros((width, features.shape[1]), np.float32)
        padded[more:] = features
        parts = map(torch.from_numpy, (whole, padded, seen))
        self.buffer.copy_(staged(*parts, device=self.buffer.device), non_blocking=True)


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
        self._idle: list[RingRows] = []
        self.seconds = step_seconds(self)

    @torch.inference_mode()
    def open(self) -> "DeviceRing":
        """An empty ring whose passes are captured, nobody else's until it is closed."""
        with current(self.device):
            if self._idle:
                rows = self._idle.pop()
                rows.both.zero_()
            else:
                rows = RingRows(self)
        return DeviceRing(self, rows)

    def give_back(self, rows: "RingRows") -> None:
        if len(self._idle) < IDLE:
            self._idle.append(rows)

    def tensors(self, rows: int) -> PassTensors:
        """Those of the next width, at most the widest."""
        width = next(width for width in WIDTHS if width >= rows)
        if width not in self._tensors:
            known = len(self.module.output)
            self._tensors[width] = PassTensors(width, self.shape, known, self.device)
        return self._tensors[width]


class RingRows:
    """Keys and values, [2, layers, kv_heads, slots + 1, d], and the passes captured over them."""

    def __init__(self, head: DeviceHead) -> None:
        shape = head.shape
        size = (2, shape.layers, shape.kv_heads, shape.slots + 1, shape.head_dim)
        self.both = torch.zeros(size, device=head.device)
        self._module = head.module
        self._runs: dict[int, Run] = {}
        for width in reversed(WIDTHS):  # the largest first: the others fit into its memory
            tensors = head.tensors(width)

            def run(tensors: PassTensors = tensors) -> None:
                self._compute(tensors)

            self._runs[width] = head.capture(run)

    def replay(self, tensors: PassTensors) -> None:
        """Run the pass that the tensors' inputs describe."""
        self._runs[tensors.width]()

    def _compute(self, tensors: PassTensors) -> None:
        keys, values = self.both
        logits, state, *rows = self._module(
            tensors.features,
            tensors.tokens.long(),
            tensors.positions.long(),
            keys,
            values,
            tensors.bias,
        )
        self.both.index_copy_(3, tensors.slots.long(), torch.stack(rows))
        torch.cat([logits, state], 1, out=tensors.results)


class DeviceRing:
    """A ring that a text has borrowed."""

    def __init__(self, head: DeviceHead, rows: RingRows) -> None:
        self._head = head
        self._rows: RingRows | None = rows

    @torch.inference_mode()
    def run(
        self,
        features: Floats,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        bias: Floats,
    ) -> tuple[Logits, HiddenStates]:
        if self._rows is None:
            raise RuntimeError("the ring is closed")
        head = self._head
        tensors = head.tensors(len(tokens))
        with current(head.device):
            tensors.fill(features, tokens, positions, bias)
            self._rows.replay(tensors)
            found = host_rows(1, tensors.results.shape[1], head.device)
            fetch(found, tensors.results)
            wait(head.device)
        logits, state = np.split(found.numpy(), [len(head.module.output)], axis=1)
        return logits, state

    def close(self) -> None:
        if self._rows is not None:
            self._head.give_back(self._rows)
        self._rows = None
