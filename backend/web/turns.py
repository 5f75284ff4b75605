"""Fair turns: few visitors at a time, each of them once. Visitors whose last turn took long go
last.
"""

import asyncio
from collections import OrderedDict

from backend.errors import DerbyError

#: Visitors who may wait, and who are remembered to have taken long.
MAX_WAITING = 100
MAX_LATE = 1000


class Turns:
    """For the tasks of one event loop. Each visitor waits for at most one turn; a newer request
    replaces an older one. Visitors whose last turn took long wait until nobody else does, and share
    one place.
    """

    def __init__(self, places: int) -> None:
        """`places`: turns at a time, 2 or more."""
        self._places = places
        self._running: set[str] = set()
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        self._late: OrderedDict[str, None] = OrderedDict()

    async def enter(self, visitor: str) -> None:
        """Wait for a turn, which must be left. Raises DerbyError if there will be none."""
        if replaced := self._waiting.pop(visitor, None):
            replaced.set_result(False)
        if len(self._waiting) >= MAX_WAITING:
            raise DerbyError(
                f"{MAX_WAITING} visitors wait for their grammars to be looked at, the limit: "
                "change yours again in a moment."
            )
        mine = self._waiting[visitor] = asyncio.get_running_loop().create_future()
        self._admit()
        try:
            admitted = await mine
        except asyncio.CancelledError:
            if self._waiting.get(visitor) is mine:
                del self._waiting[visitor]
            elif mine.done() and not mine.cancelled() and mine.result():
                self.leave(visitor, late=False)
            raise
        if not admitted:
            raise DerbyError("A newer change of the grammar is checked instead.")

    def leave(self, visitor: str, *, late: bool) -> None:
        """End a visitor's turn; `late` if it took long."""
        self._running.discard(visitor)
        self._late.pop(visitor, None)
        if late:
            self._late[visitor] = None
            if len(self._late) > MAX_LATE:
                self._late.popitem(last=False)
        self._admit()

    def _admit(self) -> None:
        while len(self._running) < self._places and (visitor := self._next()) is not None:
            self._running.add(visitor)
            self._waiting.pop(visitor).set_result(True)

    def _next(self) -> str | None:
        """The visitor who has waited longest of those whose turn it may be. Those whose last turn
        was short go first.
        """
        ready = [visitor for visitor in self._waiting if visitor not in self._running]
        in_time = (visitor for visitor in ready if visitor not in self._late)
        late = None if self._running & self._late.keys() else next(iter(ready), None)
        return next(in_time, late)
