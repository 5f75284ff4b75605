"""The trained head on a torch device: passes of fixed widths over rings that stay on the device,
captured as graphs on CUDA.

A pass's inputs go there in one copy and its results come back in one, which is waited for.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
from backend.heads.base import HIDDEN, Floats
from backend.heads.file import HeadFile
from backend.heads.shape import HeadShape
from backend.heads.timing import step_seconds
from backend.heads.torch_head import TorchHead
from backend.heads.torch_weights import torch_head
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
    """A TorchHead whose rings lie beside it."""

    def __init__(self, module: TorchHead, vocabulary: NDArray[np.int64], capture: Capture) -> None:
        self.shape = module.shape
        self.vocabulary = vocabulary
        self._shared = Shared(module, capture)
        self.seconds = step_seconds(self)

    @torch.inference_mode()
    def open(self) -> "DeviceRing":
        return DeviceRing(self._shared, self._shared.lend())


class PassTensors:
    """What changes from pass to pass of one width, in one float32 buffer, which holds whole numbers
    up to 2**24 exactly; and the results: logits [V'] and feature [D].
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


@dataclass(frozen=True)
class Shared:
    """What all rings of a head share: its weights, and the buffers of each width."""

    module: TorchHead
    capture: Capture
    _tensors: dict[int, PassTensors] = field(default_factory=dict)
    _idle: list["RingRows"] = field(default_factory=list)

    @property
    def device(self) -> torch.device:
        return self.module.output.device

    def tensors(self, rows: int) -> PassTensors:
        """That of the next width, at most the widest."""
        width = next(width for width in WIDTHS if width >= rows)
        if width not in self._tensors:
            shape, vocabulary = self.module.shape, len(self.module.output)
            self._tensors[width] = PassTensors(width, shape, vocabulary, self.device)
        return self._tensors[width]

    def lend(self) -> "RingRows":
        """An empty ring whose passes are captured, nobody else's until it is given back."""
        with current(self.device):
            if self._idle:
                rows = self._idle.pop()
                rows.both.zero_()
                return rows
            rows = RingRows(self)
            for _ in rows.prepare():
                pass
        return rows

    def give_back(self, rows: "RingRows") -> None:
        if len(self._idle) < IDLE:
            self._idle.append(rows)


class RingRows:
    """Keys and values, [2, layers, kv_heads, slots + 1, d], and the passes captured over them."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        shape = shared.module.shape
        size = (2, shape.layers, shape.kv_heads, shape.slots + 1, shape.head_dim)
        self.both = torch.zeros(size, device=shared.device)
        self._runs: dict[int, Run] = {}

    def prepare(self) -> Iterator[None]:
        """Capture every pass."""
        for width in reversed(WIDTHS):
            tensors = self._shared.tensors(width)

            def run(tensors: PassTensors = tensors) -> None:
                self._compute(tensors)

            self._runs[width] = self._shared.capture(run)
            yield

    def replay(self, tensors: PassTensors) -> None:
        """Run the pass that the tensors' inputs describe."""
        self._runs[tensors.width]()

    def _compute(self, tensors: PassTensors) -> None:
        keys, values = self.both
        logits, feature, *rows = self._shared.module(
            tensors.features,
            tensors.tokens.long(),
            tensors.positions.long(),
            keys,
            values,
            tensors.bias,
        )
        self.both.index_copy_(3, tensors.slots.long(), torch.stack(rows))
        torch.cat([logits, feature], 1, out=tensors.results)


class DeviceRing:
    """A ring that a text has borrowed."""

    def __init__(self, shared: Shared, rows: RingRows) -> None:
        self._shared = shared
        self._rows: RingRows | None = rows

    @torch.inference_mode()
    def run(
        self,
        features: Floats,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        bias: Floats,
    ) -> tuple[Logits, HiddenStates]:
        tensors, device = self._shared.tensors(len(tokens)), self._shared.device
        with current(device):
            tensors.fill(features, tokens, positions, bias)
            self._opened().replay(tensors)
            found: Tensor = host_rows(1, tensors.results.shape[1], device)
            fetch(found, tensors.results)
            wait(device)
        logits, state = np.split(found.numpy(), [len(self._shared.module.output)], axis=1)
        return logits, state

    def close(self) -> None:
        if self._rows is not None:
            self._shared.give_back(self._rows)
        self._rows = None

    def _opened(self) -> RingRows:
        if self._rows is None:
            raise RuntimeError("the ring is closed")
        return self._rows
