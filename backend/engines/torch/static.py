"""Passes of fixed widths over caches of fixed sizes: what CUDA devices run, as captured graphs.

A pass of n rows is padded to the next of WIDTHS. Its inputs are one small buffer, filled by one
copy: how long the context is, the tokens, their positions, and which of the new rows each of them
sees. The mask over the whole cache is made of them on the device, within the graph. New rows are
written behind the context, padding too, where the next pass overwrites them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from backend.engines.cache import Pass, Store
from backend.engines.torch.calling import Calling, from_bits, to_bits
from backend.engines.torch.graphs import (
    Capture,
    PassTensors,
    Run,
    current,
    fetch,
    host_rows,
    staged,
    wait,
)
from backend.engines.torch.growing import KINDS, AttentionCache, GrowingCache
from backend.engines.torch.hidden_states import HiddenStatesTap
from backend.types import LAST_LAYER, PREFILL_CHUNK, Arrays, HiddenStates, Layers, Logits

#: Rows of the passes that are captured. Wider ones are rare and run as they are.
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)

#: Rows of the smallest cache; the others have twice, four times, ... as many. Every pass reads all
#: of its cache, so it should be no larger than need be, and one that is too small is replaced.
FIRST_CAPACITY = 512


def capacity_for(rows: int) -> int:
    """The smallest capacity that holds so many rows."""
    return max(FIRST_CAPACITY, 1 << (rows - 1).bit_length())


def width_for(rows: int) -> int:
    """The width that a pass over so many rows is padded to."""
    return next((width for width in WIDTHS if width >= rows), rows)


@dataclass(frozen=True, slots=True)
class Layout:
    """What one row's pass tells of a model: `kinds` are (heads, dim) of keys and of values."""

    layers: int
    kinds: tuple[tuple[int, int], tuple[int, int]]
    vocabulary: int
    hidden: int


def layout_of(model: Any, calling: Calling, tap: HiddenStatesTap) -> Layout | None:
    """Run a row to see; None if its layers' caches differ in shape."""
    cache, one = GrowingCache(), torch.zeros(1, 1, dtype=torch.int64, device=calling.device)
    with torch.inference_mode():
        logits = model(input_ids=one, position_ids=one, past_key_values=cache, use_cache=True)
        hidden = tap.take()[-1]
    shapes = {
        tuple((b.shape[1], b.shape[3]) for b in layer.buffers) for layer in cache.rows.values()
    }
    if len(shapes) != 1 or len(cache.rows) != len(cache.layers):
        return None
    (keys, values) = shapes.pop()
    return Layout(len(cache.rows), (keys, values), logits.logits.shape[-1], hidden.shape[-1])


class StaticLayer(CacheLayerMixin):
    """One layer's part of a StaticCache."""

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


def padded(work: Pass, width: int) -> tuple[NDArray[np.int64], ...]:
    """A pass's inputs: the context's length; tokens and positions; which new rows see which. Rows
    that pad it see themselves alone, and nobody sees them.
    """
    n, rows = len(work.tokens), np.zeros((2, width), np.int64)
    rows[1] = work.held
    rows[:, :n] = work.tokens, work.positions
    seen = np.eye(width, dtype=np.int64)
    seen[:n, :n] = work.seen
    return np.array([work.held]), rows, seen


@dataclass(frozen=True)
class StaticModel:
    """A model whose passes have fixed widths: what all its caches share."""

    model: Any
    calling: Calling
    tap: HiddenStatesTap
    layout: Layout
    capture: Capture
    _tensors: dict[int, PassTensors] = field(default_factory=dict)
    _idle: list["StaticCache"] = field(default_factory=list)  # one of the first capacity at most

    def tensors(self, width: int) -> PassTensors:
        """What all caches share for passes of this width."""
        if width not in WIDTHS:
            return self._new_tensors(width)
        if width not in self._tensors:
            self._tensors[width] = self._new_tensors(width)
        return self._tensors[width]

    def _new_tensors(self, width: int) -> PassTensors:
        """Their inputs are as `padded` gives them; outputs: logits, float32, and hidden states."""
        layout, device = self.layout, self.calling.device
        logits = torch.zeros(width, layout.vocabulary, device=device)
        hidden = torch.zeros(width, layout.hidden, dtype=self.calling.dtype, device=device)
        shapes = [(1,), (width,), (width,), (width, width)]
        return PassTensors(width, shapes, (logits, hidden), torch.int64)

    @torch.inference_mode()
    def lend(self, rows: int) -> "StaticCache":
        """An empty cache for so many rows, nobody else's until it is given back, whose passes are
        captured.
        """
        capacity = capacity_for(rows)
        if self._idle and capacity == FIRST_CAPACITY:
            found = self._idle.pop()
            found.clear()
            return found
        made = StaticCache(self, capacity)
        with current(self.calling.device):
            for _ in made.prepare():
                pass
        return made

    def give_back(self, cache: "StaticCache") -> None:
        """Keep one small cache with its graphs for the next session: `idle_bytes` counts it."""
        if not self._idle and cache.capacity == FIRST_CAPACITY:
            self._idle.append(cache)

    @property
    def idle_bytes(self) -> int:
        """Bytes of the cache that is kept while no session is open."""
        row = sum(heads * dim for heads, dim in self.layout.kinds) * self.calling.dtype.itemsize
        return self.layout.layers * row * FIRST_CAPACITY

    def store(self) -> "StaticStore":
        """That of a new session, its passes captured: a race must not wait for that."""
        return StaticStore(self, self.lend(1))


class StaticCache:
    """Keys and values [layers, 1, heads, capacity, dim], and the passes captured over them."""

    def __init__(self, shared: StaticModel, capacity: int) -> None:
        self.capacity = capacity
        self._shared = shared
        layout, calling = shared.layout, shared.calling
        # Zeros, because what the mask hides counts zero times its value, which may not be NaN.
        self.keys, self.values = (
            torch.zeros(
                (layout.layers, 1, heads, capacity, dim),
                dtype=calling.dtype,
                device=calling.device,
            )
            for heads, dim in layout.kinds
        )
        self._runs: dict[tuple[int, bool], Run] = {}

    @cached_property
    def _columns(self) -> Tensor:
        return torch.arange(self.capacity, device=self._shared.calling.device)

    def clear(self) -> None:
        self.keys.zero_()
        self.values.zero_()

    def prepare(self) -> Iterator[None]:
        """Capture, one by one, every pass that was not."""
        for width in reversed(WIDTHS):  # the largest first, so that the others fit into its memory
            tensors = self._shared.tensors(width)
            tensors.clear()
            for logits in (True, False) if width == PREFILL_CHUNK else (True,):
                self.replay(tensors, logits=logits, dry=True)
                yield

    def replay(self, tensors: PassTensors, *, logits: bool, dry: bool = False) -> None:
        """Run the pass that the tensors' inputs describe; `dry`: only have it captured."""

        def run() -> None:
            self.compute(tensors, logits=logits)

        if tensors.width not in WIDTHS:
            run()
            return
        key = tensors.width, logits
        if key not in self._runs:
            self._runs[key] = self._shared.capture(run)
        if not dry:
            self._runs[key]()

    def compute(self, tensors: PassTensors, *, logits: bool) -> None:
        """The pass itself. Asks for no value of the device, and makes nothing that outlives it."""
        shared, width = self._shared, tensors.width
        start, tokens, positions, seen = tensors.inputs
        slots = start + self._columns[:width]
        layers: list[Any] = [
            StaticLayer(keys, values, slots)
            for keys, values in zip(self.keys, self.values, strict=True)
        ]
        found = shared.model(
            input_ids=tokens[None],
            position_ids=positions[None],
            attention_mask=self._mask(start, positions, seen, slots),
            past_key_values=AttentionCache(layers=layers),
            use_cache=True,
            logits_to_keep=slice(0, width if logits else 0),
        ).logits[0]
        logits_out, hidden_out = tensors.outputs
        hidden_out.copy_(shared.tap.take()[-1][0])
        if logits:
            logits_out.copy_(found)

    def _mask(self, start: Tensor, positions: Tensor, seen: Tensor, slots: Tensor) -> Any:
        """attention_mask over all slots, as GrowingStore makes it over rows."""
        calling = self._shared.calling
        context = (self._columns < start).expand(len(slots), -1)
        visible = context.index_copy(1, slots, seen.bool())
        if calling.window is None:
            return self._additive(visible)
        # Nothing is ever missing in the context, so its rows' positions are their slots.
        keys = self._columns.index_copy(0, slots, positions)
        near = positions[:, None] - keys < calling.window
        sliding = self._additive(visible & near)
        if not calling.by_layer_type:
            return sliding
        return {"full_attention": self._additive(visible), "sliding_attention": sliding}

    def _additive(self, visible: Tensor) -> Tensor:
        dtype = self._shared.calling.dtype
        hidden = torch.full(
            visible.shape, torch.finfo(dtype).min, dtype=dtype, device=visible.device
        )
        return hidden.masked_fill_(visible, 0)[None, None]


class StaticStore(Store):
    """Runs a StaticModel over a cache that it borrows, and another once that is too small."""

    def __init__(self, shared: StaticModel, cache: StaticCache) -> None:
        self._shared = shared
        self._cache = cache
        self._larger: list[StaticCache] = []  # those that follow, smallest first
        self._device = shared.calling.device
        self._hidden: Tensor | None = None  # the last pass's hidden states [n, D]

    @torch.inference_mode()
    def run(self, work: Pass) -> Logits:
        n = len(work.tokens)
        width = width_for(n)
        tensors = self._shared.tensors(width)
        with current(self._device):
            self._make_room(work.held, work.held + width)
            tensors.fill(*padded(work, width))
            wanted = len(work.rows) > 0 or width != PREFILL_CHUNK
            self._cache.replay(tensors, logits=wanted)
            logits, hidden = tensors.outputs
            self._hidden = hidden[:n].clone()
            return self._fetched(logits, work.rows.tolist())

    def _fetched(self, logits: Tensor, rows: Sequence[int]) -> Logits:
        """These rows in host memory: the one thing that a pass makes the host wait for. So many
        times the vocabulary, 4 bytes each, cross the bus.
        """
        found = host_rows(len(rows), logits.shape[1], self._device)
        for at, first, count in _stretches(rows):
            fetch(found[at : at + count], logits[first : first + count])
        if rows:
            wait(self._device)
        return found.numpy()

    @torch.inference_mode()
    def hidden_states(self, layers: Layers) -> HiddenStates:
        if self._hidden is None or layers != LAST_LAYER:
            raise RuntimeError(f"no hidden states {layers}")
        return self._hidden.float().cpu().numpy()

    def reserve(self, rows: int) -> None:
        """Borrow every cache that a text of so many tokens will move to: making one, and capturing
        its passes, takes seconds.
        """
        rows += WIDTHS[-1]  # passes are padded
        held = self._larger[-1] if self._larger else self._cache
        while held.capacity < rows:
            held = self._shared.lend(2 * held.capacity)
            self._larger.append(held)

    def _make_room(self, held: int, rows: int) -> None:
        """Have the cache hold so many rows, of which the first `held` are the context."""
        while rows > self._cache.capacity:
            larger = self._larger.pop(0) if self._larger else self._shared.lend(rows)
            for old, new in ((self._cache.keys, larger.keys), (self._cache.values, larger.values)):
                new[:, :, :, :held] = old[:, :, :, :held]
            self._shared.give_back(self._cache)
            self._cache = larger

    @torch.inference_mode()
    def gather(self, start: int, index: NDArray[np.int64]) -> None:
        """Move the kept rows together; what lies behind them, the next pass overwrites."""
        moved = [(at, row) for at, row in enumerate(index.tolist()) if at != row]
        with current(self._device):
            places = staged(torch.tensor(moved) + start, device=self._device)
            places = places.to(self._device, non_blocking=True)
            to, origin = places[::2], places[1::2]
            for buffer in (self._cache.keys, self._cache.values):
                buffer.index_copy_(3, to, buffer.index_select(3, origin))

    @torch.inference_mode()
    def read(self, places: NDArray[np.int64]) -> Arrays:
        """See Store; such a cache has no holes."""
        both = self._cache.keys, self._cache.values
        held = [buffer[:, :, :, : len(places)].cpu() for buffer in both]
        return {
            f"{kind}.{index}": to_bits(rows)
            for index in range(self._shared.layout.layers)
            for kind, rows in zip(KINDS, (rows[index] for rows in held), strict=True)
        }

    @torch.inference_mode()
    def write(self, arrays: Arrays) -> None:
        layout, dtype = self._shared.layout, self._shared.calling.dtype
        if len(arrays) != 2 * layout.layers:
            raise RuntimeError("another model's arrays")
        length = arrays[f"{KINDS[0]}.0"].shape[2]
        self._make_room(0, length)
        for kind, buffer in zip(KINDS, (self._cache.keys, self._cache.values), strict=True):
            rows = [from_bits(arrays[f"{kind}.{i}"], dtype) for i in range(layout.layers)]
            buffer[:, :, :, :length] = torch.stack(rows).to(self._device)

    def release_reserve(self) -> None:
        for cache in self._larger:
            self._shared.give_back(cache)
        self._larger.clear()

    def close(self) -> None:
        self.release_reserve()
        self._shared.give_back(self._cache)


def _stretches(rows: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Rows as stretches that follow one another: where each begins among them, its first row and
    its length.
    """
    begin = 0
    for at in range(1, len(rows) + 1):
        if at == len(rows) or rows[at] != rows[at - 1] + 1:
            yield begin, rows[begin], at - begin
            begin = at
