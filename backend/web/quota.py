"""How often a visitor may begin a race."""

import math
from collections import OrderedDict

from backend.errors import DerbyError

HOUR = 3600.0


class Quota:
    """At most `most` races of one visitor in any hour. Not thread-safe. Times are in seconds."""

    def __init__(self, most: int) -> None:
        self._most = most
        # When each visitor's races of the past hour began, the visitor of the latest one last.
        self._begun: OrderedDict[str, list[float]] = OrderedDict()

    def require(self, visitor: str, now: float) -> None:
        """Raises DerbyError if the visitor may not begin a race now."""
        recent = self._recent(visitor, now)
        if len(recent) >= self._most:
            seconds = recent[-self._most] + HOUR - now
            raise DerbyError(
                f"You have started {len(recent)} races within an hour, and {self._most} are "
                f"allowed: "
                f"the next one is possible in {_in_words(seconds)}."
            )

    def count(self, visitor: str, now: float) -> None:
        """The visitor begins a race now. Who began none within an hour is forgotten."""
        recent = self._recent(visitor, now)
        self._begun[visitor] = [*recent[1 - self._most :], now] if self._most > 1 else [now]
        self._begun.move_to_end(visitor)
        while next(iter(self._begun.values()))[-1] <= now - HOUR:
            self._begun.popitem(last=False)

    def _recent(self, visitor: str, now: float) -> list[float]:
        return [time for time in self._begun.get(visitor, ()) if time > now - HOUR]


def _in_words(seconds: float) -> str:
    if seconds < 60:
        return f"{max(1, math.ceil(seconds))} s"
    return f"{math.ceil(seconds / 60)} min"
