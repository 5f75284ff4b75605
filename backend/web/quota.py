"""How often a browser may begin a race."""

import math
from collections import OrderedDict

from backend.errors import DerbyError
from backend.web.browsers import browser_of

HOUR = 3600.0


class Quota:
    """At most `most` races in any hour for all visitors of one browser. Not thread-safe. Times are
    seconds of one clock.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # When each browser's races of the past hour began, the browser of the latest one last.
        self._begun: OrderedDict[str, list[float]] = OrderedDict()

    def require(self, visitor: str, now: float) -> None:
        """Raises DerbyError if the visitor may not begin a race now."""
        recent = self._recent(browser_of(visitor), now)
        if len(recent) >= self._most:
            seconds = recent[-self._most] + HOUR - now
            raise DerbyError(
                f"You have begun {len(recent)} races within an hour, and {self._most} are allowed: "
                f"the next one is possible in {_in_words(seconds)}."
            )

    def count(self, visitor: str, now: float) -> None:
        """The visitor begins a race now. A browser that began none within an hour is forgotten."""
        browser = browser_of(visitor)
        recent = self._recent(browser, now)
        self._begun[browser] = [*recent[1 - self._most :], now] if self._most > 1 else [now]
        self._begun.move_to_end(browser)
        while next(iter(self._begun.values()))[-1] <= now - HOUR:
            self._begun.popitem(last=False)

    def _recent(self, browser: str, now: float) -> list[float]:
        return [time for time in self._begun.get(browser, ()) if time > now - HOUR]


def _in_words(seconds: float) -> str:
    if seconds < 60:
        return f"{max(1, math.ceil(seconds))} s"
    return f"{math.ceil(seconds / 60)} min"
