"""Passes over a cache that grows in place: what the CPU runs, and every model can."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from backend.engines.torch.hidden_states import HiddenStatesTap
from backend.engines.torch.session import Calling, from_bits, to_bits
from backend.engines.tree import depths, visibility
from backend.types import Arrays, Logits, chain_parents

#: Rows a layer reserves at first; from then on it doubles.
FIRST_CAPACITY = 256


class GrowingLayer(CacheLayerMixin):
    """One layer's keys and values in buffers [b, kv heads, capacity, head dim], b being 1 unless
    several sequences are computed together.

    Rows are written in place behind the first `length` ones, so a step copies only its own rows;
    lowering `length` forgets rows without touching the buffers.
    """

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = key_states.new_empty((*key_states.shape[:2], 0, key_states.shape[3]))
        self.values = value_states.new_empty((*value_states.shape[:2], 0, value_states.shape[3]))
        self.is_initialized = True

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append n rows [b, kv heads, n, head dim]; return views of all rows so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys, values = self.buffers
        start, n = self.length, key_states.shape[2]
        if start + n > keys.shape[2]:
            capacity = max(FIRST_CAPACITY, 2 * keys.shape[2], start + n)
            keys = self.keys = _grown(keys, start, capacity)
            values = self.values = _grown(values, start, capacity)
        keys.narrow(2, start, n).copy_(key_states)
        values.narrow(2, start, n).copy_(value_states)
        self.length = start + n
        return keys.narrow(2, 0, start + n), values.narrow(2, 0, start + n)

    @property
    def buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values with their spare capacity."""
        if self.keys is None or self.values is None:
            raise RuntimeError("this layer has no rows yet")
        return self.keys, self.values

    def move(self, start: int, rows: Sequence[int]) -> None:
        """Put rows `start + rows[i]` at `start + i` and forget what follows. Mutates in place."""
        for buffer in self.buffers:
            # index_select copies, so the overlapping write is safe.
            source = torch.tensor(rows, device=buffer.device) + start
            buffer.narrow(2, start, len(rows)).copy_(buffer.index_select(2, source))
        self.length = start + len(rows)

    def gather(self, places: torch.Tensor) -> None:
        """Hold these of each sequence's rows, int64 [b, m], and no others. Copies them."""
        for name, buffer in zip(("keys", "values"), self.buffers, strict=True):
            index = places[:, None, :, None].expand(-1, buffer.shape[1], -1, buffer.shape[3])
            setattr(self, name, buffer.gather(2, index))
        self.length = places.shape[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_cache_shape(self) -> int:
        return -1


def _grown(buffer: torch.Tensor, length: int, capacity: int) -> torch.Tensor:
    """A larger copy of the first `length` rows; what follows is uninitialised and never read."""
    larger = buffer.new_empty((*buffer.shape[:2], capacity, buffer.shape[3]))
    larger.narrow(2, 0, length).copy_(buffer.narrow(2, 0, length))
    return larger


class GrowingCache(Cache):
    """A GrowingLayer for every layer that asks for one. Never has holes."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=GrowingLayer)

    @property
    def rows(self) -> list[GrowingLayer]:
        return [layer for layer in self.layers if isinstance(layer, GrowingLayer)]

    def export(self, length: int) -> Arrays:
        """Copies of the first `length` rows in host memory; bf16 as its bits, int16."""
        return {
            f"{kind}.{index}": to_bits(buffer.narrow(2, 0, length).cpu())
            for index, layer in enumerate(self.rows)
            for kind, buffer in zip(("key", "value"), layer.buffers, strict=True)
        }

    def load(self, arrays: Arrays, device: torch.device, dtype: torch.dtype) -> None:
        """Take over what `export` gave; there must be no rows."""
        self.layers.clear()
        for index in range(len(arrays) // 2):
            layer = GrowingLayer()
            for kind in ("key", "value"):
                rows = from_bits(arrays[f"{kind}.{index}"], dtype)
                setattr(layer, f"{kind}s", rows.to(device))
                layer.length = rows.shape[2]
            layer.is_initialized = True
            self.layers.append(layer)

    def gather(self, places: torch.Tensor) -> None:
        """Hold these of each sequence's rows, int64 [b, m], and no others."""
        for layer in self.rows:
            layer.gather(places)

    def truncate(self, length: int) -> None:
        """Forget every row after the first `length`. No copy."""
        for layer in self.rows:
            layer.length = min(layer.length, length)

    def keep(self, start: int, rows: Sequence[int]) -> None:
        """Of the rows behind `start`, keep these ascending ones. Copies only what must move."""
        if list(rows) == list(range(len(rows))):
            self.truncate(start + len(rows))
            return
        for layer in self.rows:
            layer.move(start, rows)


class GrowingPasses:
    """Runs a transformers model over its own GrowingCache."""

    def __init__(self, model: Any, calling: Calling, tap: HiddenStatesTap) -> None:
        self._model = model
        self._calling = calling
        self._tap = tap
        self._cache = GrowingCache()

    def run(
        self,
        start: int,
        tokens: Sequence[int],
        parents: tuple[int, ...],
        rows: Sequence[int],
    ) -> tuple[Logits, torch.Tensor]:
        n = len(tokens)
        if parents == chain_parents(n):
            # transformers masks a chain by itself, and omits the mask where kernels allow it.
            logits = self._called(tokens, range(start, start + n), None, list(rows))
            return logits, self._tap.take()[0]
        if not self._calling.capabilities.tree:
            raise RuntimeError("this model takes no tree")
        placed = start + depths(parents)
        mask = self._tree_mask(start, visibility(parents), placed)
        logits = self._called(tokens, placed.tolist(), mask, list(rows))
        return logits, self._tap.take()[0]

    def _called(
        self, tokens: Sequence[int], positions: Sequence[int], mask: Any, rows: list[int]
    ) -> Logits:
        """float32 logits [len(rows), V] in host memory, so the device has finished them."""
        device = self._calling.device
        inputs = torch.tensor([list(tokens), list(positions)], device=device)  # [2, n]
        placed = {"position_ids": inputs[1:]} if self._calling.positions else {}
        logits = self._model(
            input_ids=inputs[:1],
            **placed,
            attention_mask=mask,
            past_key_values=self._cache,
            use_cache=True,
            # Skips the vocabulary product of other rows. A list, unlike a tensor, indexes hidden
            # states on whichever device the last layer lives.
            logits_to_keep=rows,
        ).logits[0]
        return logits.float().cpu().numpy()

    def _tree_mask(
        self, start: int, ancestors: NDArray[np.bool_], positions: NDArray[np.int64]
    ) -> Any:
        """What to pass as attention_mask: additive [1, 1, n, start + n], 0 or the dtype's min."""
        n, window = len(positions), self._calling.window
        visible = np.concatenate([np.ones((n, start), bool), ancestors], axis=1)
        full = additive(visible, self._calling)[None, None]
        if window is None or positions.max() < window:
            return full
        keys = np.concatenate([np.arange(start), positions])
        near = positions[:, None] - keys[None, :] < window
        sliding = additive(visible & near, self._calling)[None, None]
        if not self._calling.by_layer_type:
            return sliding
        return {"full_attention": full, "sliding_attention": sliding}

    def keep(self, start: int, rows: Sequence[int]) -> None:
        self._cache.keep(start, rows)

    def truncate(self, length: int) -> None:
        self._cache.truncate(length)

    def export(self, length: int) -> Arrays:
        return self._cache.export(length)

    def load(self, length: int, arrays: Arrays) -> None:
        self._cache.load(arrays, self._calling.device, self._calling.dtype)

    def close(self) -> None:
        """Nothing is lent: dropping the session frees the cache."""


def additive(visible: NDArray[np.bool_], calling: Calling) -> torch.Tensor:
    """What is added to scores, of the same shape: 0 where visible, else the lowest value."""
    hidden = torch.from_numpy(~visible).to(calling.device)
    mask = torch.zeros(hidden.shape, dtype=calling.dtype, device=calling.device)
    return mask.masked_fill_(hidden, torch.finfo(calling.dtype).min)
