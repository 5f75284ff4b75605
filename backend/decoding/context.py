"""The text of a running column: its tokens, and how many of them the KV cache holds."""

from collections.abc import Sequence
from dataclasses import dataclass

from backend.decoding.drafter import Drafter
from backend.engines.base import Session


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a context may become, and what happens then.

    `positions` counts those the model has, of which scratch rows may reach `scratch_depth` beyond
    the last token. With `shift` a full context keeps its first `sink` tokens and the younger half
    of the rest; without, the column ends.
    """

    positions: int = 1 << 31
    scratch_depth: int = 0
    shift: bool = False
    sink: int = 0

    def room(self, length: int) -> int:
        """Tokens that may still be added to a context of this length."""
        return self.positions - self.scratch_depth - length

    def dropped(self) -> int:
        """Tokens that one shift drops; 0 if the sink leaves nothing to drop."""
        return max(0, (self.positions - self.scratch_depth - self.sink) // 2)


class Context:
    """Mutable. `tokens` are those the model sees; `dropped` counts earlier ones that it no longer
    sees, so that positions of the sampling noise go on counting.
    """

    def __init__(
        self, tokens: Sequence[int], session: Session, drafter: Drafter, *, cache: bool
    ) -> None:
        self.tokens = list(tokens)
        self.dropped = 0
        self._session = session
        self._drafter = drafter
        self._cache = cache

    @property
    def pending(self) -> list[int]:
        """Tokens that are not in the cache yet."""
        return self.tokens[self._session.length :]

    @property
    def position(self) -> int:
        """The next token's absolute position, whatever a shift has dropped."""
        return self.dropped + len(self.tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append fixed text; a forward pass will compute it."""
        self.tokens += tokens

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows of the last forward pass, and their hidden states for who reads them."""
        if self._drafter.states is not None:
            states = self._session.hidden_states(self._drafter.states.layers)
            self._drafter.states.add(self._session.length, states[list(rows)])
        self._session.keep(rows)

    def commit(self, rows: Sequence[int], tokens: Sequence[int]) -> None:
        """Keep these rows of the last forward pass and append the tokens that were chosen."""
        self.keep(rows)
        self.tokens += tokens
        if not self._cache:
            self.forget()

    def cut(self, length: int) -> None:
        """Forget every token after the first `length`."""
        if length < len(self.tokens):
            self._rewind(length)
            del self.tokens[length:]

    def forget(self) -> None:
        """Empty the cache and keep the text."""
        self._truncate(0)

    def require_pending(self) -> None:
        """Have the last token computed again if all of them are in the cache."""
        self._rewind(len(self.tokens) - 1)

    def shift(self, sink: int, drop: int) -> list[int]:
        """Drop `drop` tokens behind the first `sink`, and return them.

        What follows them is computed again at its new place. Turning the cached keys to new
        positions instead would be cheaper, but the cache would then hold what no text has.
        """
        gone = self.tokens[sink : sink + drop]
        self._rewind(sink)  # first, because the cache is of the first tokens at all times
        del self.tokens[sink : sink + drop]
        self.dropped += len(gone)
        return gone

    def _rewind(self, length: int) -> None:
        if self._session.length > length:
            self._truncate(length)
        self._drafter.rewind(length)

    def _truncate(self, length: int) -> None:
        """Cut the cache; what a recurrent model has to forget beyond that is pending again."""
        self._session.truncate(length)
        if self._drafter.states is not None:
            self._drafter.states.truncate(self._session.length)
