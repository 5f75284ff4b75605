"""Passes over a cache that grows in place: what the CPU runs, and every model can."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from backend.engines.cache import Pass, Store
from backend.engines.torch.calling import Calling, from_bits, to_bits
from backend.engines.torch.hidden_states import HiddenStatesTap, layers_of
from backend.types import Arrays, HiddenStates, Layers, Logits

#: What a cache consists of: of each layer keys and values, [1, kv heads, rows, head dim].
KINDS = ("key", "value")

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
            raise RuntimeError("no rows yet")
        return self.keys, self.values

    def gather(self, start: int, index: torch.Tensor) -> None:
        """Hold behind `start` these of the rows behind it, int64 [m], and no others. Mutates in
        place.
        """
        m = len(index)
        for buffer in self.buffers:
            places = (index + start).to(buffer.device)
            # index_select copies, so the overlapping write is safe.
            buffer.narrow(2, start, m).copy_(buffer.index_select(2, places))
        self.length = start + m

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


class AttentionCache(Cache):
    """One without recurrent layers, for any model."""

    def has_previous_state(self, layer_idx: int | None = None) -> bool:
        """What recurrent layers make of a mask is asked for where this is False: there are none."""
        return True


class GrowingCache(AttentionCache):
    """A GrowingLayer for every layer that asks for one."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=GrowingLayer)

    @property
    def rows(self) -> dict[int, GrowingLayer]:
        """The layers that hold rows, by their index in the model."""
        layers = enumerate(self.layers)
        return {i: one for i, one in layers if isinstance(one, GrowingLayer) and one.is_initialized}

    def put(self, index: int, layer: GrowingLayer) -> None:
        """Have the layer hold its rows already."""
        self.layers += [GrowingLayer() for _ in range(len(self.layers), index + 1)]
        self.layers[index] = layer


class GrowingStore(Store):
    """Runs a transformers model over its own GrowingCache."""

    def __init__(
        self, model: Any, calling: Calling, tap: HiddenStatesTap, layers: Layers = ()
    ) -> None:
        """`layers`: those whose hidden states are shown beside the last one's. Raises DerbyError if
        the model has none that we know.
        """
        self._model = model
        self._shown = {layer: layers_of(model)[layer] for layer in layers}
        self._calling = calling
        self._tap = tap
        self._cache = GrowingCache()
        self._hidden: dict[int, Any] = {}  # the last pass's by layer, tensors [1, n, D]

    @torch.inference_mode()
    def run(self, work: Pass) -> Logits:
        """See Store. The logits are in host memory, so the device has finished the pass."""
        for layer in self._cache.rows.values():
            layer.length = min(layer.length, work.held)
        inputs = torch.from_numpy(np.stack([work.tokens, work.positions]))
        tokens, positions = inputs.to(self._calling.device)[:, None]  # [1, n] each
        with self._tap.reading(self._shown):
            logits = self._model(
                input_ids=tokens,
                position_ids=positions,
                # transformers masks chains by itself, and omits the mask where kernels allow it.
                attention_mask=None if work.plain else self._mask(work),
                past_key_values=self._cache,
                use_cache=True,
                # Skips the vocabulary product of other rows. A list, unlike a tensor, indexes
                # hidden states on whichever device the last layer lives.
                logits_to_keep=work.rows.tolist(),
            ).logits
        self._hidden = self._tap.take()
        return logits[0].float().cpu().numpy()

    def _mask(self, work: Pass) -> Any:
        """What to pass as attention_mask: additive [1, 1, n, P + n], by layer type if need be."""
        bias, calling = work.bias(), self._calling
        full = self._additive(bias)
        if calling.window is None:
            return full
        sliding = self._additive(work.within(calling.window, bias))
        if not calling.by_layer_type:
            return sliding
        return {"full_attention": full, "sliding_attention": sliding}

    def _additive(self, bias: NDArray[np.float32]) -> torch.Tensor:
        """The bias in the model's dtype, whose lowest value may be higher."""
        dtype = self._calling.dtype
        moved = torch.from_numpy(bias).to(self._calling.device, dtype)
        return moved.clamp_(min=torch.finfo(dtype).min)

    @torch.inference_mode()
    def hidden_states(self, layers: Layers) -> HiddenStates:
        if not set(layers) <= self._hidden.keys():
            raise RuntimeError(f"no hidden states {layers}")
        # Layers may lie on several devices.
        return torch.cat([self._hidden[i][0].float().cpu() for i in layers], -1).numpy()

    @torch.inference_mode()
    def gather(self, start: int, index: NDArray[np.int64]) -> None:
        places = torch.from_numpy(index).to(self._calling.device)
        for layer in self._cache.rows.values():
            layer.gather(start, places)

    @torch.inference_mode()
    def read(self, places: NDArray[np.int64]) -> Arrays:
        """See Store; bf16 as its bits, int16."""
        rows = torch.from_numpy(places)
        return {
            f"{kind}.{index}": to_bits(buffer.index_select(2, rows.to(buffer.device)).cpu())
            for index, layer in self._cache.rows.items()
            for kind, buffer in zip(KINDS, layer.buffers, strict=True)
        }

    @torch.inference_mode()
    def write(self, arrays: Arrays) -> None:
        indexes = {name.partition(".")[2] for name in arrays}
        layers = sorted(int(index) for index in indexes if index.isdecimal())
        calling = self._calling
        if arrays.keys() != {f"{kind}.{index}" for kind in KINDS for index in layers}:
            raise RuntimeError("another model's arrays")
        self._cache = GrowingCache()
        for index in layers:
            layer = GrowingLayer()
            layer.keys, layer.values = (
                from_bits(arrays[f"{kind}.{index}"], calling.dtype).to(calling.device, copy=True)
                for kind in KINDS
            )
            layer.length = layer.keys.shape[2]
            layer.is_initialized = True
            self._cache.put(index, layer)

    def close(self) -> None:
        self._cache, self._hidden = GrowingCache(), {}
