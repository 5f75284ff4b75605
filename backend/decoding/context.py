"""The text of a running column: its tokens, and how many of them the KV cache holds."""

from collections.abc import Sequence

from backend.decoding.drafter import Drafter
from backend.engines.base import Session


class Context:
    """Mutable. `tokens`: prompt and answer so far."""

    def __init__(
        self, tokens: Sequence[int], session: Session, drafter: Drafter, *, cache: bool
    ) -> None:
        self.tokens = list(tokens)
        self._session = session
        self._drafter = drafter
        self._cache = cache

    @property
    def pending(self) -> list[int]:
        """Tokens that are not in the cache yet."""
        return self.tokens[self._session.length :]

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
            self._truncate(0)

    def cut(self, length: int) -> None:
        """Forget every token after the first `length`."""
        if length < len(self.tokens):
            self._rewind(length)
            del self.tokens[length:]

    def require_pending(self) -> None:
        """Have the last token computed again if all of them are in the cache."""
        self._rewind(len(self.tokens) - 1)

    def _rewind(self, length: int) -> None:
        if self._session.length > length:
            self._truncate(length)
        self._drafter.rewind(length)

    def _truncate(self, length: int) -> None:
        """Cut the cache; what that forgets beyond is pending again."""
        self._session.truncate(length)
        if self._drafter.states is not None:
            self._drafter.states.truncate(self._session.length)
