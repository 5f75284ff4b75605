"""The cache of a model with recurrent layers: their states, and the rows of attention layers."""

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from backend.engines.cache import Pass
from backend.engines.torch.calling import from_bits, to_bits
from backend.engines.torch.growing import GrowingCache, GrowingStore
from backend.engines.torch.recurrence.layers import RECURRENCES, After, Recurrence, State
from backend.types import Arrays, Logits

#: What the arrays of states are called, beside those of rows.
STATE = "state"

#: How many rows the states are behind: a model may have no attention whose rows could be counted.
LENGTH = f"{STATE}.length"


class RecurrentCache(GrowingCache):
    """States of the recurrent layers, and rows of the others.

    `states`: of each recurrent layer, behind the first `length` rows; `afters`: what the pass over
    `width` rows behind them has made of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.length = self.width = 0
        self.states: dict[int, State] = {}
        self.afters: dict[int, After] = {}
        self._kept: tuple[int, dict[int, State]] = (0, {})  # the checkpoint's rows and states

    def behind(self, rows: int) -> dict[int, State]:
        """The states behind so many rows. Raises RuntimeError if none were kept there."""
        count = rows - self.length
        if rows == 0:
            return {}
        if count == 0:
            return self.states
        if 0 < count <= self.width:
            return {index: after(count) for index, after in self.afters.items()}
        if rows == self._kept[0]:
            return self._kept[1]
        raise RuntimeError(f"no state behind row {rows}: a pass ran from {self.length}")

    def take_up(self, rows: int) -> None:
        """Have the next pass begin behind so many rows. Raises RuntimeError as `behind` does."""
        self.states = self.behind(rows)
        self.afters, self.length, self.width = {}, rows, 0

    def begin(self, states: dict[int, State], rows: int) -> None:
        """Begin with these states, behind so many rows."""
        self.states, self.length = states, rows

    def keep(self, rows: int) -> None:
        """Go on keeping the states behind so many rows, in place of those kept so before."""
        self._kept = (rows, self.behind(rows))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.length + query_length, 0


class RecurrentLayer:
    """A recurrent layer's forward: its own pass over a RecurrentCache, transformers' elsewhere."""

    def __init__(self, layer: Any, recurrence: Recurrence) -> None:
        self._layer, self._recurrence = layer, recurrence
        # accelerate, which moves weights of models on several devices, wraps the forward.
        self._name = "_old_forward" if hasattr(layer, "_old_forward") else "forward"
        self._usual = getattr(layer, self._name)
        setattr(layer, self._name, self)

    def __call__(
        self,
        hidden_states: torch.Tensor,
        cache_params: Any = None,
        past_key_values: Any = None,
        **others: Any,
    ) -> torch.Tensor:
        """[b, n, D], of the same shape. Models call the cache by one name or the other."""
        cache = past_key_values if cache_params is None else cache_params
        if not isinstance(cache, RecurrentCache):
            named = {"cache_params": cache_params, "past_key_values": past_key_values}
            given = {name: value for name, value in named.items() if value is not None}
            return self._usual(hidden_states, **given, **others)
        index = self._layer.layer_idx
        state = cache.states.get(index) or self.start()
        done, cache.afters[index] = self._recurrence.run(self._layer, hidden_states, state)
        return done

    def start(self) -> State:
        """The layer's state before any text."""
        return self._recurrence.start(self._layer)


def recurrent_layers(model: Any) -> dict[int, RecurrentLayer]:
    """The model's recurrent layers by their index, computed by passes of ours from now on.
    Idempotent.
    """
    found: dict[int, RecurrentLayer] = {}
    for module in model.modules():
        recurrence = RECURRENCES.get(type(module).__name__)
        if recurrence is not None:
            found[module.layer_idx] = _bound(module) or RecurrentLayer(module, recurrence)
    return found


def _bound(module: Any) -> RecurrentLayer | None:
    forwards = (vars(module).get(name) for name in ("_old_forward", "forward"))
    return next((one for one in forwards if isinstance(one, RecurrentLayer)), None)


class RecurrentStore(GrowingStore):
    """Runs a transformers model with recurrent layers: new rows are a chain."""

    cache_kind = RecurrentCache

    def __init__(self, *arguments: Any) -> None:
        """The arguments are those of GrowingStore."""
        super().__init__(*arguments)
        self._layers = recurrent_layers(self._model)

    @torch.inference_mode()
    def run(self, work: Pass) -> Logits:
        """See Store. Raises RuntimeError for rows that are no chain, or have no state to follow."""
        if not work.plain:
            raise RuntimeError("recurrent layers compute chains alone")
        cache = self._recurrent
        cache.take_up(work.held)
        logits = super().run(work)
        cache.width = len(work.tokens)
        return logits

    @property
    def _recurrent(self) -> RecurrentCache:
        return cast(RecurrentCache, self._cache)

    def checkpoint(self, rows: int) -> None:
        """See Store."""
        self._recurrent.keep(rows)

    def gather(self, start: int, index: NDArray[np.int64]) -> None:
        raise RuntimeError("no row can be taken out of a state")

    @torch.inference_mode()
    def read(self, places: NDArray[np.int64]) -> Arrays:
        """See Store. States are [1, m, 1, k], which no cut along the rows' axis takes apart."""
        states = self._recurrent.behind(len(places))
        return {
            **super().read(places),
            **{name: to_bits(_flat(tensor).cpu()) for name, tensor in _named(states)},
            LENGTH: np.full((1, 1, 1, 1), len(places)),
        }

    @torch.inference_mode()
    def write(self, arrays: Arrays) -> None:
        rows = {name: array for name, array in arrays.items() if not name.startswith(STATE)}
        states = {index: layer.start() for index, layer in self._layers.items()}
        if arrays.keys() - rows.keys() != {LENGTH, *(name for name, _ in _named(states))}:
            raise RuntimeError("arrays of another model")
        super().write(rows)
        for name, tensor in _named(states):
            tensor.copy_(from_bits(arrays[name], tensor.dtype).view_as(tensor))
        self._recurrent.begin(states, int(arrays[LENGTH].item()))


def _named(states: dict[int, State]) -> Iterator[tuple[str, torch.Tensor]]:
    for index, state in states.items():
        for part, tensor in enumerate(state):
            yield f"{STATE}.{index}.{part}", tensor


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """A state's tensor [1, m, ...] as [1, m, 1, k]."""
    return tensor.flatten(2)[:, :, None]
