"""Captured passes: a CUDA graph launches at once what Python would launch kernel by kernel.

A run that can be captured reads and writes tensors that stay where they are, and asks the device
for no value; so it takes no arguments.
"""

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from numpy.typing import NDArray

log = logging.getLogger(__name__)

#: Runs before a capture: libraries choose kernels and allocate their workspaces in them.
WARM_UP = 3

Run = Callable[[], None]

#: Makes of a run what does the same again.
Capture = Callable[[Run], Run]


def uncaptured(run: Run) -> Run:
    """Capture nothing, for devices without graphs."""
    return run


class PassTensors:
    """What passes of one width read and write, wherever that is captured, because passes never run
    at once: `inputs`, views of one buffer that one copy fills, and `outputs`.
    """

    def __init__(
        self,
        width: int,
        shapes: Sequence[tuple[int, ...]],
        outputs: Sequence[torch.Tensor],
        dtype: torch.dtype,
    ) -> None:
        """`shapes` and `dtype` are the inputs', which lie on the device of the outputs."""
        self.width = width
        self.outputs = outputs
        self._device = outputs[0].device
        sizes = [math.prod(shape) for shape in shapes]
        self._buffer = torch.zeros(sum(sizes), dtype=dtype, device=self._device)
        parts = self._buffer.split(sizes)
        self.inputs = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def clear(self) -> None:
        """Have the inputs describe a pass at the very beginning, which fits into any cache."""
        self._buffer.zero_()

    def fill(self, *inputs: NDArray[Any]) -> None:
        """Copy them there, all in one go."""
        ready = staged(*map(torch.from_numpy, inputs), device=self._device)
        self._buffer.copy_(ready, non_blocking=True)


class CudaGraphs:
    """Captures runs on one device. Their graphs share a pool of memory, which is safe in any order:
    none runs beside another, and results are copied into tensors from outside the pool.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._failed = False
        with torch.cuda.device(device):
            self._pool = torch.cuda.graph_pool_handle()
            self._stream = torch.cuda.Stream()

    def __call__(self, run: Run) -> Run:
        """What replays the run; the run itself if the device refuses, which is logged once."""
        if self._failed:
            return run
        try:
            return self._captured(run)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            self._failed = True
            log.warning("capturing failed", exc_info=True)
            return run

    def _captured(self, run: Run) -> Run:
        with torch.cuda.device(self._device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(WARM_UP):
                    run()
            torch.cuda.current_stream().wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                run()
        return graph.replay


def capture_for(device: torch.device) -> Capture:
    """What captures runs on this device."""
    return CudaGraphs(device) if device.type == "cuda" else uncaptured


def current(device: torch.device) -> AbstractContextManager[object]:
    """Within it, what is launched goes to this device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def staged(*parts: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Host tensors of one dtype, flat and one after another, where copies to the device need not
    be waited for.
    """
    total = sum(part.numel() for part in parts)
    # Pinned memory comes from torch's own store, which reuses none that a copy still reads.
    flat = torch.empty(total, dtype=parts[0].dtype, pin_memory=device.type == "cuda")
    return torch.cat([part.flatten() for part in parts], out=flat)


def fetch(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy from the device, when it gets there; `wait` tells when it has."""
    target.copy_(source, non_blocking=True)


def wait(device: torch.device) -> None:
    """Wait for what this thread has launched on the device."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def host_rows(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """Host memory, float32 [rows, columns], for `fetch` to fill; nobody else's while it lives."""
    return torch.empty(rows, columns, pin_memory=device.type == "cuda")
