"""One sequence over a transformers model: a KV cache that grows in place, and its Session."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from backend.engines.torch.hidden_states import HiddenStatesTap
from backend.engines.tree import depths, require_path, turned, visibility
from backend.errors import DerbyError
from backend.types import Arrays, Capabilities, HiddenStates, Logits, chain_parents

#: Rows a layer reserves at first; from then on it doubles.
FIRST_CAPACITY = 256


class GrowingLayer(CacheLayerMixin):
    """One layer's keys and values in buffers [1, kv heads, capacity, head dim].

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
        """Append n rows [1, kv heads, n, head dim]; return views of all rows so far."""
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
        found: dict[str, NDArray[Any]] = {}
        for index, layer in enumerate(self.rows):
            for kind, buffer in zip(("key", "value"), layer.buffers, strict=True):
                rows = buffer.narrow(2, 0, length).cpu()
                bits = rows.view(torch.int16) if rows.dtype == torch.bfloat16 else rows
                found[f"{kind}.{index}"] = bits.numpy().copy()
        return found

    def load(self, arrays: Arrays, device: torch.device, dtype: torch.dtype) -> None:
        """Take over what `export` gave; the cache must be empty."""
        for index in range(len(arrays) // 2):
            layer = GrowingLayer()
            for kind in ("key", "value"):
                rows = torch.from_numpy(arrays[f"{kind}.{index}"].copy())
                rows = rows.view(dtype) if rows.dtype == torch.int16 else rows.to(dtype)
                setattr(layer, f"{kind}s", rows.to(device))
                layer.length = rows.shape[2]
            layer.is_initialized = True
            self.layers.append(layer)

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


@dataclass(frozen=True, slots=True)
class Calling:
    """How this model wants to be called.

    `window` is the number of positions that a sliding-window layer sees, itself included (None:
    no such layer); `by_layer_type` says that it takes one mask per layer type. `positions` is
    False where the model counts them itself, from the rows in the cache.
    """

    device: torch.device
    dtype: torch.dtype
    capabilities: Capabilities
    window: int | None = None
    by_layer_type: bool = False
    positions: bool = True


class TorchSession:
    """Session over a transformers causal LM."""

    def __init__(self, model: Any, calling: Calling, tap: HiddenStatesTap) -> None:
        self._model = model
        self._calling = calling
        self._tap = tap
        self._cache: GrowingCache | None = GrowingCache()
        self._length = 0
        self._pending: tuple[int, ...] = ()
        self._passed = 0  # the last length threshold that the expected text has passed
        self._hidden: Any = None  # the last pass's hidden states, a tensor [n, D]

    @property
    def length(self) -> int:
        return self._length

    def expect(self, length: int) -> None:
        passed = self._calling.capabilities.passed(length)
        if passed != self._passed:
            self.truncate(0)
            self._passed = passed

    def forward(self, tokens: Sequence[int], parents: Sequence[int], rows: Sequence[int]) -> Logits:
        """See Session. Raises DerbyError when a position lies beyond the model's context."""
        cache = self._open_cache()
        if self._pending:
            raise RuntimeError("forward before keep: the rows of the last pass are still pending")
        n, start = len(tokens), self._length
        links = tuple(parents)
        _check_tree(n, links, rows)
        mask: Any = None
        if links == chain_parents(n) and start + n > self._passed:
            # transformers masks a chain by itself, and omits the mask where kernels allow it.
            positions = range(start, start + n)
        else:
            if not self._calling.capabilities.tree:
                raise RuntimeError("this model takes no tree")
            placed, seen = turned(start + depths(links), visibility(links), self._passed)
            links += (-1,) * (len(placed) - n)
            positions = placed.tolist()
            with torch.inference_mode():
                mask = self._tree_mask(seen, placed)
        self._check_room(max(positions) + 1)
        padded = [*tokens, *[0] * (len(positions) - n)]
        try:
            logits = self._run(cache, padded, positions, mask, list(rows))
        except BaseException:
            cache.truncate(start)
            raise
        self._pending = links
        self._hidden = self._tap.take()[0, :n]
        return logits

    @torch.inference_mode()
    def _run(
        self,
        cache: GrowingCache,
        tokens: Sequence[int],
        positions: Sequence[int],
        mask: Any,
        rows: list[int],
    ) -> Logits:
        """float32 logits [len(rows), V] in host memory, so the device has finished them."""
        device = self._calling.device
        inputs = torch.tensor([list(tokens), list(positions)], device=device)  # [2, n]
        placed = {"position_ids": inputs[1:]} if self._calling.positions else {}
        logits = self._model(
            input_ids=inputs[:1],
            **placed,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            # Skips the vocabulary product of other rows. A list, unlike a tensor, indexes hidden
            # states on whichever device the last layer lives.
            logits_to_keep=rows,
        ).logits[0]
        return logits.float().cpu().numpy()

    @torch.inference_mode()
    def hidden_states(self) -> HiddenStates:
        if self._hidden is None:
            raise RuntimeError("no pass has been run yet")
        return self._hidden.float().cpu().numpy()

    def _tree_mask(self, ancestors: NDArray[np.bool_], positions: NDArray[np.int64]) -> Any:
        """What to pass as attention_mask: additive [1, 1, n, length + n], 0 or the dtype's min."""
        n, start, window = len(positions), self._length, self._calling.window
        visible = np.concatenate([np.ones((n, start), bool), ancestors], axis=1)
        full = self._additive(visible)
        if window is None or positions.max() < window:
            return full
        keys = np.concatenate([np.arange(start), positions])
        near = positions[:, None] - keys[None, :] < window
        sliding = self._additive(visible & near)
        if not self._calling.by_layer_type:
            return sliding
        return {"full_attention": full, "sliding_attention": sliding}

    def _additive(self, visible: NDArray[np.bool_]) -> torch.Tensor:
        calling = self._calling
        hidden = torch.from_numpy(~visible).to(calling.device)
        mask = torch.zeros(hidden.shape, dtype=calling.dtype, device=calling.device)
        return mask.masked_fill_(hidden, torch.finfo(calling.dtype).min)[None, None]

    def keep(self, rows: Sequence[int]) -> None:
        cache = self._open_cache()
        require_path(rows, self._pending)
        with torch.inference_mode():
            cache.keep(self._length, rows)
        self._length += len(rows)
        self._pending = ()

    def truncate(self, length: int) -> None:
        cache = self._open_cache()
        if not 0 <= length <= self._length:
            raise RuntimeError(f"cannot truncate {self._length} tokens to {length}")
        cache.truncate(length)
        self._length = length
        self._pending = ()

    @torch.inference_mode()
    def export(self, length: int) -> Arrays:
        if self._pending or not 0 <= length <= self._length:
            raise RuntimeError(f"export of {length} of {self._length} tokens")
        return self._open_cache().export(length) if length else {}

    @torch.inference_mode()
    def load(self, length: int, arrays: Arrays) -> None:
        cache = self._open_cache()
        if self._length or self._pending or (length and not arrays):
            raise RuntimeError("load into a session that is not empty, or of another model")
        cache.load(arrays, self._calling.device, self._calling.dtype)
        self._length = length

    def close(self) -> None:
        self._cache = None
        self._hidden = None
        self._length = 0
        self._pending = ()

    def _open_cache(self) -> GrowingCache:
        if self._cache is None:
            raise RuntimeError("the session is closed")
        return self._cache

    def _check_room(self, context: int) -> None:
        limit = self._calling.capabilities.max_context
        if context > limit:
            raise DerbyError(
                f"The text would be {context} tokens long and this model reads at most {limit}: "
                "shorten the prompt or ask for fewer new tokens."
            )


def _check_tree(n: int, parents: tuple[int, ...], rows: Sequence[int]) -> None:
    if n == 0 or len(parents) != n:
        raise RuntimeError(f"{n} tokens with {len(parents)} parent links")
    if not all(-1 <= parent < i for i, parent in enumerate(parents)):
        raise RuntimeError(f"parent links {parents} do not point backwards")
    if not all(0 <= row < n for row in rows):
        raise RuntimeError(f"rows {tuple(rows)} of {n}")
