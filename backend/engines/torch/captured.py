"""Passes of fixed widths over caches of fixed sizes: what CUDA runs, as captured graphs, which
launch at once what Python would launch kernel by kernel.

A run that can be captured takes no arguments: it reads and writes tensors that stay where they are,
and asks the device for no value. A pass of n rows is padded to the next of WIDTHS. Its inputs are
one small buffer, filled by one copy: how long the context is, the tokens, their positions, and
which of the new rows each of them sees. The mask over the whole cache is made of them on the
device. New rows are written behind the context, padding too, where the next pass overwrites them.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from backend.engines.session import Tree
from backend.engines.torch.session import KINDS, RowsCache, TorchModel, TorchSession
from backend.types import PREFILL_CHUNK, Arrays, Layers, Logits

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
        """Copy them there, all in one go, which need not be waited for."""
        # Pinned memory comes from torch's own store, which reuses none that a copy still reads.
        pinned = self._device.type == "cuda"
        ready = torch.empty(len(self._buffer), dtype=self._buffer.dtype, pin_memory=pinned)
        torch.cat([torch.from_numpy(part).flatten() for part in inputs], out=ready)
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
            with torch.cuda.device(self._device):
                self._stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(self._stream):
                    for _ in range(WARM_UP):
                        run()
                torch.cuda.current_stream().wait_stream(self._stream)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                    run()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            self._failed = True
            log.warning("capturing failed", exc_info=True)
            return run
        return graph.replay


def capture_for(device: torch.device) -> Capture:
    """What captures runs on this device."""
    return CudaGraphs(device) if device.type == "cuda" else uncaptured


def current(device: torch.device) -> AbstractContextManager[object]:
    """Within it, what is launched goes to this device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def wait(device: torch.device) -> None:
    """Wait for what this thread has launched on the device."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def host_rows(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """Host memory, float32 [rows, columns], for copies that `wait` waits for."""
    return torch.empty(rows, columns, pin_memory=device.type == "cuda")


#: Rows of the passes that are captured. Wider ones are rare and run as they are.
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)

#: Rows of the smallest cache; the others have twice, four times, ... as many. Every pass reads all
#: of its cache, so it should be no larger than need be, and one that is too small is replaced.
FIRST_CAPACITY = 512


def capacity_for(rows: int) -> int:
    """The smallest capacity that holds so many rows."""
    return max(FIRST_CAPACITY, 1 << (rows - 1).bit_length())


@dataclass(frozen=True)
class FixedWidths:
    """What the captured passes of all sessions share. `layers` have keys and values of these
    `kinds`, (heads, dim); `vocabulary` and `hidden` are the sizes of logits and of a layer's
    hidden states.
    """

    loaded: TorchModel
    capture: Capture
    layers: int
    kinds: tuple[tuple[int, int], tuple[int, int]]
    vocabulary: int
    hidden: int
    _tensors: dict[tuple[int, int], PassTensors] = field(default_factory=dict)

    def tensors(self, width: int, layers: int) -> PassTensors:
        """Inputs and outputs of passes of this width, which never run at once; so many layers are
        shown. Those of a width that is not captured last as long as its pass: a vocabulary of
        logits a row would add up.
        """
        if (width, layers) in self._tensors:
            return self._tensors[width, layers]
        device, dtype = self.loaded.device, self.loaded.dtype
        logits = torch.zeros(width, self.vocabulary, device=device)
        states = torch.zeros(layers, width, self.hidden, dtype=dtype, device=device)
        shapes = [(1,), (width,), (width,), (width, width)]
        tensors = PassTensors(width, shapes, (logits, states), torch.int64)
        if width in WIDTHS:
            self._tensors[width, layers] = tensors
        return tensors


@torch.inference_mode()
def fixed_widths(loaded: TorchModel, capture: Capture) -> FixedWidths | None:
    """The model with passes of fixed widths; None where its layers' caches differ in shape."""
    session = TorchSession(loaded, 1)
    logits = session.forward([0], [-1], [0])
    layers = [layer.buffers for layer in session.layers if layer.is_initialized]
    shapes = {tuple((each.shape[1], each.shape[3]) for each in pair) for pair in layers}
    if len(shapes) != 1 or len(layers) < len(session.layers):
        return None
    keys, values = shapes.pop()
    hidden = loaded.model.config.get_text_config(decoder=True).hidden_size
    return FixedWidths(loaded, capture, len(layers), (keys, values), logits.shape[1], hidden)


class SlotsLayer(CacheLayerMixin):
    """One layer's part of a cache that does not move: new rows go to `slots`."""

    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self._slots = keys, values, slots
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """The tensors are there from the start."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the rows to their slots; give all slots, because the mask hides what is no row."""
        assert self.keys is not None and self.values is not None  # noqa: S101, PT018
        self.keys.index_copy_(2, self._slots, key_states)
        self.values.index_copy_(2, self._slots, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_max_cache_shape(), 0

    def get_seq_length(self) -> int:
        """Unknown to the host; whoever calls the model passes positions and a mask."""
        return 0

    def get_max_cache_shape(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]


class CapturedSession(TorchSession):
    """Its passes are captured when it is opened: no pass of a race waits for that, unless the text
    outgrows the rows that it was opened for.
    """

    def __init__(
        self, shared: FixedWidths, max_context: int, rows: int, layers: Layers = ()
    ) -> None:
        super().__init__(shared.loaded, max_context, layers=layers)
        self._shared = shared
        self._device = shared.loaded.device
        self._allocate(capacity_for(rows + WIDTHS[-1] if rows else 1))

    @torch.inference_mode()
    def _allocate(self, capacity: int) -> None:
        """Have a cache of so many rows, keys and values [layers, 1, heads, capacity, dim], and its
        passes captured.
        """
        shared = self._shared
        # Zeros, because what the mask hides counts zero times its value, which may not be NaN.
        self._keys, self._values = (
            torch.zeros(
                (shared.layers, 1, heads, capacity, dim),
                dtype=shared.loaded.dtype,
                device=self._device,
            )
            for heads, dim in shared.kinds
        )
        self._columns = torch.arange(capacity, device=self._device)
        self._runs: dict[tuple[int, bool], Run] = {}
        with current(self._device):
            for width in reversed(WIDTHS):  # the largest first: the others fit into its memory
                tensors = shared.tensors(width, len(self._layers))
                tensors.clear()
                for logits in (True, False) if width == PREFILL_CHUNK else (True,):
                    self._runs[width, logits] = shared.capture(self._pass(tensors, logits=logits))

    def _make_room(self, rows: int) -> None:
        """Have the cache hold so many rows, of which the kept ones stay."""
        if rows > (capacity := len(self._columns)):
            before, length = self._stores(), self.length
            self._allocate(capacity_for(max(rows, 2 * capacity)))
            for old, new in zip(before, self._stores(), strict=True):
                new[..., :length, :] = old[..., :length, :]

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int], parents: Sequence[int], rows: Sequence[int]) -> Logits:
        tree, n = self._tree(tokens, parents, rows), len(tokens)
        width = next((width for width in WIDTHS if width >= n), n)
        tensors = self._shared.tensors(width, len(self._layers))
        with current(self._device):
            self._make_room(self.length + width)
            tensors.fill(*_padded(tokens, tree, self.length, width))
            key = width, len(rows) > 0 or width != PREFILL_CHUNK
            run = self._runs.get(key) or self._pass(tensors, logits=True)
            run()
            logits, states = tensors.outputs
            if self._layers:
                self._states = dict(zip(self._layers, states[:, None, :n].clone(), strict=True))
            # The one thing that a pass makes the host wait for: so many times the vocabulary,
            # 4 bytes each, cross the bus.
            wanted = host_rows(len(rows), logits.shape[1], self._device)
            for _, stretch in groupby(enumerate(rows), lambda pair: pair[1] - pair[0]):
                places, consecutive = zip(*stretch, strict=True)
                part = logits[consecutive[0] : consecutive[-1] + 1]
                wanted[places[0] : places[-1] + 1].copy_(part, non_blocking=True)
            if rows:
                wait(self._device)
        self._pending(tokens, parents)
        return wanted.numpy()

    def _pass(self, tensors: PassTensors, *, logits: bool) -> Run:
        """A pass over these. It asks for no value of the device, and makes nothing that outlives
        it.
        """
        loaded, width = self._shared.loaded, tensors.width
        start, ids, positions, seen = tensors.inputs

        def run() -> None:
            slots = start + self._columns[:width]
            context = (self._columns < start).expand(width, -1)
            visible = context.index_copy(1, slots, seen.bool())
            near = visible
            if loaded.window:
                # Nothing is ever missing in the context, so its rows' positions are their slots.
                keys = self._columns.index_copy(0, slots, positions)
                near = visible & (positions[:, None] - keys < loaded.window)
            layers: list[Any] = [
                SlotsLayer(keys, values, slots)
                for keys, values in zip(self._keys, self._values, strict=True)
            ]
            with loaded.showing(self._layers):
                result = loaded.model(
                    input_ids=ids[None],
                    position_ids=positions[None],
                    attention_mask=loaded.mask(visible, near),
                    past_key_values=RowsCache(layers=layers),
                    use_cache=True,
                    logits_to_keep=slice(0, width if logits else 0),
                ).logits[0]
            logits_out, states_out = tensors.outputs
            for out, layer in zip(states_out, self._layers, strict=True):
                out.copy_(loaded.states[layer][0])
            loaded.states.clear()
            if logits:
                logits_out.copy_(result)

        return run

    def _drop_behind(self, length: int) -> None:
        """The next pass says where its rows go."""

    def _buffers(self) -> Iterator[tuple[str, Tensor]]:
        for index, pair in enumerate(zip(self._keys, self._values, strict=True)):
            yield from zip((f"{kind}.{index}" for kind in KINDS), pair, strict=True)

    def _stores(self) -> Iterable[Tensor]:
        return self._keys, self._values

    @torch.inference_mode()
    def _load(self, length: int, arrays: Arrays) -> None:
        self._make_room(length)
        if arrays.keys() != (buffers := dict(self._buffers())).keys():
            raise RuntimeError("another model's arrays")
        for name, buffer in buffers.items():
            buffer[:, :, :length] = self._tensor(arrays[name])

    def close(self) -> None:
        self._runs, self._states = {}, {}
        self._keys = self._values = torch.zeros(0)


def _padded(
    tokens: Sequence[int], tree: Tree, length: int, width: int
) -> tuple[np.ndarray[Any, Any], ...]:
    """A pass's inputs: the context's length; tokens and positions; which new rows see which. Rows
    that pad it see themselves alone, and nobody sees them.
    """
    n, rows = len(tokens), np.zeros((2, width), np.int64)
    rows[1] = length
    rows[:, :n] = tokens, tree.depths + length
    seen = np.eye(width, dtype=np.int64)
    seen[:n, :n] = tree.seen
    return np.array([length]), rows, seen
