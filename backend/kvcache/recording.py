"""A session that starts from a known prefix and leaves its own cache to those who come later."""

import logging
from collections.abc import Callable, Sequence

from backend.engines.base import Engine, Session
from backend.kvcache.prefix_cache import PrefixCache
from backend.kvcache.sources import Scope
from backend.types import Arrays, HiddenStates, Logits

log = logging.getLogger(__name__)


def model_key(engine: Engine) -> str:
    """Caches of equal keys fit each other."""
    return f"{engine.fingerprint} {engine.spec}"


#: Takes over a cache: its tokens, and the session.
Leave = Callable[[Sequence[int], Session], None]


class RecordingSession(Session):
    """Wraps a session; knows its tokens, and gives the cache to `leave` when it is closed."""

    def __init__(
        self,
        inner: Session,
        held: Sequence[int],
        leave: Leave,
    ) -> None:
        """`held` are the tokens that `inner` holds already."""
        self.tokens = list(held)
        self._inner = inner
        self._leave = leave
        self._pending: Sequence[int] = ()
        self._closed = False

    @property
    def length(self) -> int:
        return self._inner.length

    def forward(self, tokens: Sequence[int], parents: Sequence[int], rows: Sequence[int]) -> Logits:
        logits = self._inner.forward(tokens, parents, rows)
        self._pending = tokens
        return logits

    def hidden_states(self) -> HiddenStates:
        return self._inner.hidden_states()

    def keep(self, rows: Sequence[int]) -> None:
        self._inner.keep(rows)
        self.tokens += [self._pending[row] for row in rows]
        self._pending = ()

    def truncate(self, length: int) -> None:
        self._inner.truncate(length)
        del self.tokens[length:]
        self._pending = ()

    def export(self, length: int) -> Arrays:
        return self._inner.export(length)

    def load(self, length: int, arrays: Arrays) -> None:
        self._inner.load(length, arrays)

    def close(self) -> None:
        """Leave the cache behind, if its rows are settled, and release it. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if self.tokens and not self._pending:
                self._leave(self.tokens, self._inner)
        except Exception:
            # The column has ended well or badly by now; its cache is only a help for later ones.
            log.exception("a cache could not be kept")
        finally:
            self._inner.close()


def leave_in(prefixes: PrefixCache, scope: Scope, engine: Engine) -> Leave:
    """What a session calls to put its cache into `prefixes`, unless they cover its text or the
    visitor has left since the session was opened.
    """
    visit = prefixes.visit(scope)

    def leave(tokens: Sequence[int], session: Session) -> None:
        key = model_key(engine)
        if not visit.over and not prefixes.covers(scope, key, tokens):
            prefixes.put(scope, key, tokens, session.export(len(tokens)))

    return leave
