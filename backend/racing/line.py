"""The one line in front of the machine: races, benchmarks and calls of programs wait in it, each
guest's behind those that came before.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from backend.errors import DerbyError

#: Waiting places of one guest.
EACH = 2

#: Seconds between two looks at whether it is one's turn.
PERIOD = 0.25


class Line:
    """Places in their order, the first of which has the turn, and at most `most` behind it. Of one
    event loop. `what` it is that waits is a noun for refusals.
    """

    def __init__(self, most: int, what: str = "race") -> None:
        self._most, self._what = most, what
        self._places: list[Place] = []

    @contextmanager
    def place(self, guest: str) -> Iterator["Place"]:
        """A place at the end of the line, for as long as the block runs. Raises DerbyError where
        enough are waiting, of all guests or of this one.
        """
        waiting = [place.guest for place in self._places[1:]]
        if waiting.count(guest) >= EACH:
            sentence = f"{EACH} {self._what}s of yours are waiting: wait until one begins."
            raise DerbyError(sentence)
        if len(waiting) >= self._most:
            raise DerbyError(f"{len(waiting)} {self._what}s are waiting: try again later.")
        place = Place(self._places, guest)
        self._places.append(place)
        try:
            yield place
        finally:
            self._places.remove(place)


class Place:
    """One guest's place among `places`, which are the line's own list."""

    def __init__(self, places: "list[Place]", guest: str) -> None:
        self._places, self.guest = places, guest
        self._begun = 0.0

    async def ahead(self) -> AsyncIterator[int]:
        """How many places are ahead, again and again, until this one has the turn."""
        while ahead := self._places.index(self):
            yield ahead
            await asyncio.sleep(PERIOD)
        self._begun = time.monotonic()

    def overdue(self, seconds: float) -> bool:
        """Whether its turn has lasted so long while others wait. Thread-safe."""
        return len(self._places) > 1 and time.monotonic() - self._begun > seconds

    def again(self) -> None:
        """Give the turn up and go to the end of the line."""
        self._places.remove(self)
        self._places.append(self)
