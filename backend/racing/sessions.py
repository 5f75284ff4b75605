"""Sessions that stay open between races: a text that begins as the last one computes what is new.

As the slots of llama.cpp's server do, a session is cut back to what both texts begin with.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Literal, NamedTuple

from backend.engines.base import Engine, Session
from backend.types import Layers

#: Bytes of all sessions that are kept between races.
BUDGET = 1 << 30

#: Bytes that a session is counted with beside its rows: what its passes have allocated.
OVERHEAD = 1 << 23

#: A session of more rows than this begins anew for a text that has a small part of them in common.
SMALL, WASTE = 1024, 8


class Place(NamedTuple):
    """Whose session it is: of this visitor's column of that number, its target, of which it shows
    these layers' hidden states, or its draft.
    """

    visitor: str
    column: int
    role: Literal["target", "draft"]
    engine: Engine
    layers: Layers = ()


class KeptSessions:
    """Open sessions by their places, at most `budget` bytes: those used last. Not thread-safe."""

    def __init__(self, budget: int = BUDGET) -> None:
        self._budget = budget
        self._sessions: OrderedDict[Place, Session] = OrderedDict()  # the last used last

    @contextmanager
    def session(self, place: Place, text: Sequence[int], *, kept: bool) -> Iterator[Session]:
        """A session for `text`, of which it holds a beginning already where `kept`: it is the one
        that was left at this place, and is left there again. One that fails, or is not to be kept,
        is closed. At least the text's last token is left to be computed.
        """
        session = self._sessions.pop(place, None) if kept else None
        if session is not None:
            common = common_length(session.tokens, text)
            if session.length > SMALL and WASTE * common < session.length:
                session.close()
                session = None
        if session is None:
            session = place.engine.open(layers=place.layers)
        try:
            session.truncate(common_length(session.tokens, text[:-1]))
            yield session
        except GeneratorExit:  # a column that was stopped, between two passes
            self._leave(place, session, kept=kept)
            raise
        except BaseException:
            session.close()
            raise
        self._leave(place, session, kept=kept)

    def _leave(self, place: Place, session: Session, *, kept: bool) -> None:
        if not kept:
            session.close()
            return
        self._sessions[place] = session
        while self.bytes > self._budget:
            self._sessions.popitem(last=False)[1].close()

    def forget(self, visitor: str) -> None:
        """Close the sessions of a visitor who has left."""
        self._close([place for place in self._sessions if place.visitor == visitor])

    def close(self, engine: Engine) -> None:
        """Close the sessions of a model that leaves memory."""
        self._close([place for place in self._sessions if place.engine is engine])

    def _close(self, places: Sequence[Place]) -> None:
        for place in places:
            self._sessions.pop(place).close()

    @property
    def bytes(self) -> int:
        """Bytes of all sessions, as far as their engines tell."""
        return sum(OVERHEAD + session.bytes for session in self._sessions.values())

    def __len__(self) -> int:
        return len(self._sessions)


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts have in common from the start."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
