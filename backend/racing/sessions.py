"""Sessions of columns, and those that stay open between races: a text that begins as the last one
computes what is new.

As the slots of llama.cpp's server do, a session is cut back to what both texts begin with.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Literal, NamedTuple

from backend.engines.base import Engine, Session
from backend.types import Layers

#: Sessions that stay open have room for a multiple of so many tokens, and take so many bytes at
#: most, all together.
STEP, BUDGET = 1024, 1 << 30


class Place(NamedTuple):
    """Whose session it is: of this visitor's column of that number, its target, of which it shows
    these layers' hidden states, or its draft. `keep`: it stays open for the visitor's next race.
    """

    visitor: str
    column: int
    role: Literal["target", "draft"]
    engine: Engine
    layers: Layers = ()
    keep: bool = False


class Sessions:
    """Opens sessions. Not thread-safe. `make_room(bytes, what)` frees memory for one, by `drop` if
    need be, or raises DerbyError.
    """

    def __init__(self, make_room: Callable[[int, str], None], budget: int = BUDGET) -> None:
        self._make_room = make_room
        self._budget = budget
        self._running = 0  # bytes of those that columns use
        self._idle: OrderedDict[Place, tuple[Session, int]] = OrderedDict()  # and their rows

    @contextmanager
    def session(self, place: Place, text: Sequence[int], rows: int) -> Iterator[Session]:
        """A session with room for `rows` tokens; that of an earlier race holds a beginning of
        `text` already, but for its last token at least. One that fails is closed. Raises DerbyError
        if there is no memory for it.
        """
        if place.keep:
            rows = min(-(-rows // STEP) * STEP, place.engine.max_context)
        session, failed = self._begin(place, text, rows), True
        size = rows * place.engine.row_bytes
        self._running += size
        try:
            yield session
            failed = False
        except GeneratorExit:  # a column that was stopped, between two passes
            failed = False
            raise
        finally:
            self._running -= size
            if failed or not place.keep:
                session.close()
            else:
                self._idle[place] = session, rows
                while self._idle_bytes > self._budget:
                    self.drop()

    def _begin(self, place: Place, text: Sequence[int], rows: int) -> Session:
        """That of an earlier race, copied into another one where its room does not fit."""
        earlier, room = self._idle.pop(place, (None, 0))
        if earlier is not None:
            earlier.truncate(common_length(earlier.tokens, text[:-1]))
            if room == rows:
                return earlier
        engine, what = place.engine, f"The KV cache of {rows:,} tokens of {place.engine.spec}"
        try:
            self._make_room(rows * engine.row_bytes, what)
            session = engine.open(rows, place.layers)
            if earlier is not None:
                session.load(earlier.tokens, earlier.save(earlier.length))
            return session
        finally:
            if earlier is not None:
                earlier.close()

    @property
    def _idle_bytes(self) -> int:
        return sum(session.bytes for session, _ in self._idle.values())

    @property
    def bytes(self) -> int:
        """What the caches of all sessions take, or may come to take while their columns run."""
        return self._running + self._idle_bytes

    def drop(self) -> bool:
        """Close the session that was used longest ago; False if no column left one open."""
        if not self._idle:
            return False
        self._idle.popitem(last=False)[1][0].close()
        return True

    def forget(self, engine: Engine) -> None:
        """Close the sessions of a model that leaves memory."""
        for place in [place for place in self._idle if place.engine is engine]:
            self._idle.pop(place)[0].close()

    def __len__(self) -> int:
        return len(self._idle)


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts have in common from the start."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
