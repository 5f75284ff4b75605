"""The seam between the loop and a model: an Engine opens Sessions, a Session owns one KV cache."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from backend.engines.batch import Batch
from backend.text import Tokenizer
from backend.types import Arrays, Capabilities, HiddenStates, Logits, ModelSpec


class Session(Protocol):
    """One sequence's KV cache. Not thread-safe."""

    @property
    def length(self) -> int:
        """Tokens kept so far: the logical context length."""
        ...

    def forward(self, tokens: Sequence[int], parents: Sequence[int], rows: Sequence[int]) -> Logits:
        """Run one forward pass over n new tokens and return float32 logits [len(rows), V].

        `parents[i] < i` is the index of token i's parent among the new tokens, -1 for the kept
        context; a token sees the context, its ancestors and itself, at position
        length + its depth below the context. `rows` are the indices whose logits are wanted, in
        that order; () computes none. The new rows stay pending until `keep` says which
        of them become context; a second forward before that raises RuntimeError.
        """
        ...

    def hidden_states(self) -> HiddenStates:
        """The last forward pass's final hidden states, one row a token: a new array.

        They are what the output projection reads. Raises RuntimeError if the engine does not
        declare `Capabilities.hidden_states`.
        """
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Make these pending rows (a path from the context down, ascending) part of the context.

        The other pending rows are forgotten. Cheap: no copy of the cache.
        """
        ...

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` kept tokens, and any pending rows."""
        ...

    def export(self, length: int) -> Arrays:
        """Copies of the KV cache of the first `length` kept tokens: [1, heads, length, dim] each.

        Pending rows must have been settled by `keep`. Changes nothing.
        """
        ...

    def load(self, length: int, arrays: Arrays) -> None:
        """Make what `export(length)` gave the context of this empty session; copies it.

        Raises RuntimeError if the session is not empty or the arrays are not this model's.
        """
        ...

    def close(self) -> None:
        """Release the cache. Idempotent."""
        ...


class Engine(Protocol):
    """A loaded model. One copy of the weights serves every session it opens."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints mean the same weights."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Bytes of memory that the weights take, on whatever device."""
        ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def open(self) -> Session: ...

    def open_batch(self, requests: int) -> Batch:
        """The caches of so many sequences, whose passes are one.

        Raises RuntimeError unless the engine declares `Capabilities.batch`.
        """
        ...

    def warm_up(self) -> Iterator[None]:
        """Do, bit by bit, what the first passes would otherwise pay for."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has finished all queued work."""
        ...
