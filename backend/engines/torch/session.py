"""A text over a cache that is written in place: what the CPU runs, and all models that attend; and
one over transformers' own cache, of a model whose state cannot be branched or cut back.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin

from backend.engines.engine import no_trained_draft
from backend.engines.session import Session, visibility
from backend.types import Arrays, Guesses, HiddenStates, Layers, Logits

#: What a cache consists of: of each layer keys and values, [1, kv heads, rows, head dim].
KINDS = ("key", "value")

#: Rows that a layer reserves where nobody says how many come; where they do not suffice it doubles.
FIRST_CAPACITY = 256


@dataclass(frozen=True, eq=False)
class TorchModel:
    """A loaded model and how it wants to be called."""

    model: Any
    device: torch.device
    window: int  # positions that a sliding layer sees, itself included; 0: no layer slides
    by_layer_type: bool  # it takes one mask for each type of layer
    positions: bool  # it takes positions; else it counts the rows in the cache
    cache: str  # what it calls its cache
    #: What the latest pass handed, within `showing`, to layers: [1, n, D] by their indices.
    states: dict[int, Any] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def layers(self) -> nn.ModuleList:
        """The decoder's layers, in their order. Raises DerbyError if it has none that we know."""
        count = self.model.config.get_text_config(decoder=True).num_hidden_layers
        for part in self.model.get_decoder().children():
            if isinstance(part, nn.ModuleList) and len(part) == count:
                return part
        raise no_trained_draft(self.model.config.model_type)

    @contextmanager
    def showing(self, layers: Layers) -> Iterator[None]:
        """Note in the pass within what these layers are given. Hooks that stayed would run in every
        pass of every column of the model.
        """

        def hook(index: int) -> Any:
            def note(_module: Any, inputs: Any, named: Any) -> None:
                self.states[index] = inputs[0] if inputs else named["hidden_states"]

            return note

        hooks = [
            self.layers()[layer].register_forward_pre_hook(hook(layer), with_kwargs=True)
            for layer in layers
        ]
        try:
            yield
        finally:
            for handle in hooks:
                handle.remove()

    def mask(self, visible: Tensor, near: Tensor) -> Any:
        """attention_mask of a pass, as the model takes it, of bool [n, P + n]: what each row sees,
        and what of that lies within the window.
        """
        if not self.window:
            return self._additive(visible)
        if not self.by_layer_type:
            return self._additive(near)
        full, sliding = self._additive(visible), self._additive(near)
        return {"full_attention": full, "sliding_attention": sliding}

    def _additive(self, visible: Tensor) -> Tensor:
        """What is added to scores, [1, 1, n, P + n]."""
        least, device = torch.finfo(self.dtype).min, visible.device
        hidden = torch.full(visible.shape, least, dtype=self.dtype, device=device)
        return hidden.masked_fill_(visible, 0)[None, None]


class RowsLayer(CacheLayerMixin):
    """One layer's keys and values in buffers [1, kv heads, capacity, head dim], of which the first
    `length` rows are there. New ones are written behind them.
    """

    is_sliding = False

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.length = 0
        self._capacity = capacity

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Memory that no row has been written to is none that the CPU has given."""
        self.keys, self.values = (
            like.new_empty((*like.shape[:2], self._capacity, like.shape[3]))
            for like in (key_states, value_states)
        )
        self.is_initialized = True

    @property
    def buffers(self) -> tuple[Tensor, Tensor]:
        assert self.keys is not None and self.values is not None  # noqa: S101, PT018
        return self.keys, self.values

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append n rows [1, kv heads, n, head dim]; return views of all rows so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, end = self.length, self.length + key_states.shape[2]
        if end > self.buffers[0].shape[2]:
            old = self.buffers
            self._capacity = max(2 * end, FIRST_CAPACITY)
            self.lazy_initialization(key_states, value_states)
            for larger, buffer in zip(self.buffers, old, strict=True):
                larger[:, :, :start] = buffer[:, :, :start]
        for buffer, rows in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = rows
        self.length = end
        keys, values = self.buffers
        return keys[:, :, :end], values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_cache_shape(self) -> int:
        return -1


class RowsCache(Cache):
    """A cache of attending layers alone, for any model."""

    def has_previous_state(self, layer_idx: int | None = None) -> bool:
        """What recurrent layers make of a mask is asked for where this is False: there are none."""
        return True


class TorchSession(Session):
    """`rows`: tokens that there is to be room for; 0: unknown. `layers`: those whose hidden states
    are shown.
    """

    def __init__(
        self,
        loaded: TorchModel,
        max_context: int,
        guesses: Guesses = "trees",
        rows: int = 0,
        layers: Layers = (),
    ) -> None:
        super().__init__(max_context, guesses)
        self._loaded, self._layers = loaded, layers
        make: Any = partial(RowsLayer, rows or FIRST_CAPACITY)  # a layer for each that asks for one
        self._cache = RowsCache(layer_class_to_replicate=make)
        self._states: dict[int, Any] = {}  # the last pass's by layer, tensors [1, n, D]

    @property
    def layers(self) -> list[RowsLayer]:
        """Those that the model has asked for; one that reads another's rows has none of its own."""
        layers: Any = self._cache.layers
        return layers

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int], parents: Sequence[int], rows: Sequence[int]) -> Logits:
        """See Session. The logits are in host memory, so the device has finished the pass."""
        tree, loaded = self._tree(tokens, parents, rows), self._loaded
        self._drop_behind(self.length)
        positions = tree.depths + self.length
        inputs = torch.from_numpy(np.stack([np.array(tokens, np.int64), positions]))
        ids, places = inputs.to(loaded.device)[:, None]  # [1, n] each
        mask = None
        if not tree.chain:  # transformers masks chains itself, where kernels allow it without one
            context = np.ones(self.length, np.bool_)
            seen = near = torch.from_numpy(visibility(context, tree, positions)).to(loaded.device)
            if loaded.window:
                seen_near = visibility(context, tree, positions, loaded.window)
                near = torch.from_numpy(seen_near).to(loaded.device)
            mask = loaded.mask(seen, near)
        with loaded.showing(self._layers):
            logits = loaded.model(
                input_ids=ids,
                position_ids=places,
                attention_mask=mask,
                past_key_values=self._cache,
                use_cache=True,
                # Skips the vocabulary product of other rows. A list, unlike a tensor, indexes
                # hidden states on whichever device the last layer lives.
                logits_to_keep=list(rows),
            ).logits
        self._states = dict(loaded.states)
        loaded.states.clear()
        self._pending(tokens, parents)
        return logits[0].float().cpu().numpy()

    @torch.inference_mode()
    def hidden_states(self, layers: Layers) -> HiddenStates:
        if not set(layers) <= self._states.keys():
            raise RuntimeError(f"no hidden states {layers}")
        # Layers may lie on several devices.
        return torch.cat([self._states[i][0].float().cpu() for i in layers], -1).numpy()

    @torch.inference_mode()
    def _keep(self, rows: Sequence[int]) -> None:
        """Move the rows that stay together; those behind them are overwritten."""
        moved = [(place, row) for place, row in enumerate(rows) if place != row]
        if moved:
            places = torch.tensor(moved) + self.length
            for buffer in self._stores():
                to, origin = places.to(buffer.device).unbind(1)
                buffer.index_copy_(-2, to, buffer.index_select(-2, origin))
        self._drop_behind(self.length + len(rows))

    def _cut(self, length: int) -> None:
        self._drop_behind(length)

    def _drop_behind(self, length: int) -> None:
        """Have the next pass write behind so many rows."""
        for layer in self.layers:
            layer.length = min(layer.length, length)

    def _buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Each layer's keys and values, by the names that a saved cache has for them."""
        for index, layer in enumerate(self.layers):
            if layer.is_initialized:
                yield from zip((f"{kind}.{index}" for kind in KINDS), layer.buffers, strict=True)

    def _stores(self) -> Iterable[Tensor]:
        """What holds the cache's rows, along the last axis but one."""
        return (buffer for _, buffer in self._buffers())

    @torch.inference_mode()
    def _save(self, length: int) -> Arrays:
        """See Session; bf16, which numpy lacks, as its bits, int16."""
        rows = {name: buffer[:, :, :length].cpu() for name, buffer in self._buffers()}
        bits = {n: r.view(torch.int16) if r.dtype == torch.bfloat16 else r for n, r in rows.items()}
        return {name: each.contiguous().numpy().copy() for name, each in bits.items()}

    @torch.inference_mode()
    def _load(self, length: int, arrays: Arrays) -> None:
        indexes = sorted({int(name.partition(".")[2] or -1) for name in arrays})
        if arrays.keys() != {f"{kind}.{index}" for kind in KINDS for index in indexes}:
            raise RuntimeError("another model's arrays")
        for index in indexes:
            keys, values = (self._tensor(arrays[f"{kind}.{index}"]) for kind in KINDS)
            self._cache.update(keys, values, index)

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        """The rows that `save` made an array of."""
        rows = torch.from_numpy(np.array(array))
        rows = rows.view(torch.bfloat16) if rows.dtype == torch.int16 else rows
        return rows.to(self._loaded.device, self._loaded.dtype)

    def close(self) -> None:
        self._cache, self._states = RowsCache(layers=[]), {}


class PlainSession(Session):
    """Computes a text's first tokens in one pass, as `generate` does, and each later one in a pass
    of its own. A text that was cut is computed again from its beginning.
    """

    def __init__(self, loaded: TorchModel, max_context: int) -> None:
        super().__init__(max_context, "none")
        self._loaded = loaded
        self._config = loaded.model.config.get_text_config(decoder=True)
        self._cache: Any = None
        self._computed = 0  # tokens in the cache

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int], parents: Sequence[int], rows: Sequence[int]) -> Logits:
        self._tree(tokens, parents, rows)
        start, logits = self.length, np.zeros((len(rows), self._config.vocab_size), np.float32)
        computed = self._computed
        self._computed = 0  # should the pass fail half-way
        if computed == start > 0:
            for place, token in enumerate(tokens):
                wanted = [at for at, row in enumerate(rows) if row == place]
                logits[wanted] = self._pass(start + place, [token], [0] * len(wanted))
            self._computed = start + len(tokens)
        elif rows:  # else the next pass computes these, too: the first one is the only wide one
            self._cache = DynamicCache(config=self._config)
            logits = self._pass(0, [*self.tokens, *tokens], [start + row for row in rows])
            self._computed = start + len(tokens)
        self._pending(tokens, parents)
        return logits

    def _pass(self, start: int, tokens: list[int], rows: list[int]) -> Logits:
        """float32 [len(rows), V], in host memory."""
        loaded = self._loaded
        placed = torch.arange(start, start + len(tokens), device=loaded.device)[None]
        logits = loaded.model(
            input_ids=torch.tensor([tokens], device=loaded.device),
            **({"position_ids": placed} if loaded.positions else {}),
            **{loaded.cache: self._cache},
            use_cache=True,
            logits_to_keep=rows,
        ).logits[0]
        return logits.float().cpu().numpy()

    def _keep(self, rows: Sequence[int]) -> None: ...

    def _cut(self, length: int) -> None:
        self.tokens.clear()

    def close(self) -> None:
        self._cache = None
