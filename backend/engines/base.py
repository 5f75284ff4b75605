"""A loaded model as the rest of the program knows it: an Engine, and the Sessions that it opens."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from backend.engines.cache import Cache, NewRows, Store
from backend.errors import DerbyError
from backend.text import Tokenizer
from backend.types import (
    LAST_LAYER,
    Arrays,
    Capabilities,
    HiddenStates,
    Layers,
    Logits,
    ModelSpec,
    chain_parents,
)

#: Runs a pass for one sequence of a cache: its index and what it asks for.
RunPass = Callable[[int, NewRows], Logits]


class Session:
    """One sequence of a cache. Not thread-safe. `tokens`: those kept so far."""

    def __init__(self, cache: Cache, index: int = 0, run: RunPass | None = None) -> None:
        """`run`: what computes its passes, together with other sequences' perhaps; None: the cache,
        for this sequence alone.
        """
        self._cache = cache
        self._index = index
        self._run = run or cache.run_one
        self.tokens: list[int] = []
        self._computed: Sequence[int] = ()  # tokens of the last pass

    @property
    def length(self) -> int:
        """Tokens kept so far: the logical context length."""
        return self._cache.lengths[self._index]

    def forward(self, tokens: Sequence[int], parents: Sequence[int], rows: Sequence[int]) -> Logits:
        """Run one forward pass over n new tokens and return float32 logits [len(rows), V].

        `parents[i] < i` is the index of token i's parent among the new tokens, -1 for the kept
        context; a token sees the context, its ancestors and itself, at position
        length + its depth below the context. `rows` are the indices whose logits are wanted, in
        that order; () computes none. The new rows stay pending until `keep` says which
        of them become context; a second forward before that raises RuntimeError. Raises DerbyError
        for a position beyond the model's context.
        """
        logits = self._run(self._index, NewRows(tokens, parents, rows))
        self._computed = tokens
        return logits

    def hidden_states(self, layers: Layers = LAST_LAYER) -> HiddenStates:
        """The last forward pass's hidden states of these layers, one row a token: a new array.

        The last layer's are what the output projection reads. Raises RuntimeError if the engine
        does not declare `Capabilities.hidden_states`, or the session was not opened for these.
        """
        return self._cache.hidden_states(self._index, layers)

    def keep(self, rows: Sequence[int]) -> None:
        """Make these pending rows (a path from the context down, ascending) part of the context.

        The other pending rows are forgotten. Cheap: no copy of the cache.
        """
        self._cache.keep(self._index, rows)
        self.tokens += [self._computed[row] for row in rows]

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` kept tokens, and any pending rows; where a
        recurrent state has been overwritten, more than that: `length` says how much is left.
        """
        self._cache.rewind(self._index, length)
        del self.tokens[self.length :]

    def checkpoint(self) -> None:
        """Have a later `truncate` find the text that is kept now; of one checkpoint, the last."""
        self._cache.checkpoint(self._index)

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """Lengths that are worth exporting, ascending: of the checkpoint, and of what is kept."""
        return self._cache.checkpoints(self._index)

    def export(self, length: int) -> Arrays:
        """Copies of the KV cache of the first `length` kept tokens: [1, heads, length, dim] each,
        or, of a recurrent model, whatever it keeps behind them.

        Pending rows must have been settled by `keep`. Changes nothing. Raises RuntimeError for a
        length that `truncate` would not find.
        """
        return self._cache.export(self._index, length)

    def load(self, tokens: Sequence[int], arrays: Arrays) -> None:
        """Make these tokens, whose `export` gave the arrays, the context of this empty session.

        Raises RuntimeError if the session is not empty, is not alone in its cache, or the arrays
        are not this model's.
        """
        if len(self._cache.lengths) > 1:
            raise RuntimeError("one sequence of several: load all at once")
        self._cache.load(len(tokens), arrays)
        self.tokens = list(tokens)

    def reserve(self, length: int) -> None:
        """Prepare for a text of so many tokens what no pass is to wait for."""
        self._cache.reserve(length)

    def close(self) -> None:
        """Release the cache, once all of its sequences are closed. Idempotent."""
        self._cache.leave(self._index)


class Engine(ABC):
    """A loaded model. One copy of the weights serves every cache it opens.

    `fingerprint`: equal ones mean the same weights; `weight_bytes`: the memory that they take, on
    whatever device; `row_bytes`: what a token takes in a cache, 0: not known; `slow_at_first`: how
    many rows passes have of which the first one is slow;
    `depth`: its layers, where some can be left out.
    """

    spec: ModelSpec
    fingerprint: str
    weight_bytes: int
    row_bytes: int = 0
    tokenizer: Tokenizer
    capabilities: Capabilities
    slow_at_first: Sequence[int] = ()
    depth: int = 0

    def shortened(self, kept: Sequence[int], *, captured: bool = True) -> "Engine":
        """This model with these of its layers alone, ascending, over the same weights; without
        passes that a device captures if it is not worth the time.

        Raises RuntimeError if the engine does not declare `Capabilities.skipping`, DerbyError for a
        model that needs all of its layers.
        """
        raise RuntimeError(f"{self.spec} has no layers that can be left out")

    @abstractmethod
    def store(self, sequences: int) -> Store:
        """Empty caches of so many sequences: one, or several if `Capabilities.batch`."""

    def layer_store(self, layers: Layers) -> Store:
        """An empty cache of one sequence that shows the hidden states in front of these layers.
        Raises DerbyError where that cannot be.
        """
        raise DerbyError(
            f"{self.spec} does not show the hidden states of its layers {layers}, which this draft "
            "reads: choose the torch engine."
        )

    def open(self, layers: Layers = ()) -> Session:
        """An empty session, alone in its cache, that shows the hidden states of these layers, too.
        Raises DerbyError if it cannot. The last layer's need not be asked for.
        """
        if inner := tuple(layer for layer in layers if layer not in LAST_LAYER):
            return Session(Cache(self.layer_store(inner), self.capabilities))
        return Session(self.cache())

    def cache(self, sequences: int = 1) -> Cache:
        """The caches of so many sequences, whose passes are one.

        Raises RuntimeError for several if the engine does not declare `Capabilities.batch`.
        """
        if sequences > 1 and not self.capabilities.batch:
            raise RuntimeError(f"{self.spec} computes one sequence a pass")
        return Cache(self.store(sequences), self.capabilities, sequences)

    def warm_up(self) -> Iterator[None]:
        """Run, one by one, passes of which the first one is slow."""
        if not self.slow_at_first:
            return
        session = self.open()
        for width in self.slow_at_first:
            if width <= self.capabilities.max_context:
                session.forward([0] * width, chain_parents(width), (0,))
                session.truncate(0)
                yield
        session.close()

    def synchronize(self) -> None:  # noqa: B027 (most devices are done when a pass returns)
        """Wait until the device has finished all queued work."""
