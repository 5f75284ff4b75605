"""Which visitors have a connection to this server, and since when the others have none."""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


class Presence:
    """Knows which visitors are connected. Thread-safe. Whoever serves connections reports each one
    as `opened` and, once, as `closed`. `by_address`: the addresses of connections are reliable, so
    visitors may be told apart by them.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, by_address: bool = False
    ) -> None:
        self._clock = clock
        self._by_address = by_address
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()
        # Of visitors without a connection: since when, the longest absent first.
        self._absent: OrderedDict[str, float] = OrderedDict()
        self._met: set[str] = set()
        self._addresses: dict[str, str] = {}
        self._greet: Callable[[], None] = lambda: None

    def greet(self, callback: Callable[[], None]) -> None:
        """Have `callback` called whenever a visitor is met for the first time."""
        self._greet = callback

    def opened(self, visitor: str, *, page: bool = True, address: str = "") -> None:
        """`page`: the connection is one that only a page holds, which so is met."""
        with self._lock:
            new = page and visitor not in self._met
            self._open[visitor] += 1
            if self._by_address and address:
                self._addresses[visitor] = address
            if new:
                self._met.add(visitor)
            self._absent.pop(visitor, None)
        if new:
            self._greet()

    def closed(self, visitor: str) -> None:
        with self._lock:
            self._open[visitor] -= 1
            if self._open[visitor] <= 0:
                del self._open[visitor]
                self._begin_absence(visitor)

    @contextmanager
    def there(self, visitor: str, *, page: bool = True, address: str = "") -> Iterator[None]:
        """A connection of the visitor, for as long as it is entered."""
        self.opened(visitor, page=page, address=address)
        try:
            yield
        finally:
            self.closed(visitor)

    def count(self, visitor: str) -> int:
        """How many connections the visitor has."""
        with self._lock:
            return self._open[visitor]

    def address(self, visitor: str) -> str:
        """Where the visitor's last connection came from; "" if that is not known."""
        with self._lock:
            return self._addresses.get(visitor, "")

    def now(self) -> float:
        """Seconds of one clock that only runs forward."""
        return self._clock()

    def seen(self, visitor: str) -> None:
        """A request of the visitor arrived: without a connection, they are absent from now on."""
        with self._lock:
            if visitor not in self._open:
                self._begin_absence(visitor)

    def absent_since(self, visitor: str) -> float | None:
        """When the visitor's last connection ended, or their last request came; None while there
        is a connection. Of an unknown visitor: now.
        """
        with self._lock:
            return None if visitor in self._open else self._absent.get(visitor, self._clock())

    def met(self, visitor: str) -> bool:
        """Whether the visitor has, or has had, a connection."""
        with self._lock:
            return visitor in self._met

    def listens(self, visitor: str) -> bool:
        """Whether the visitor has been met, or a call of theirs lasts."""
        with self._lock:
            return visitor in self._met or visitor in self._open

    def forget_absent(self, seconds: float) -> Sequence[str]:
        """Forget the visitors who have been absent for that long, and return them."""
        with self._lock:
            before, gone = self._clock() - seconds, list[str]()
            for visitor, since in self._absent.items():
                if since > before:
                    break
                gone.append(visitor)
            for visitor in gone:
                del self._absent[visitor]
                self._met.discard(visitor)
                self._addresses.pop(visitor, None)
            return gone

    def _begin_absence(self, visitor: str) -> None:
        self._absent[visitor] = self._clock()
        self._absent.move_to_end(visitor)


class Everybody(Presence):
    """For a server that does not follow its connections: every visitor is there, always."""

    def seen(self, visitor: str) -> None: ...

    def absent_since(self, visitor: str) -> float | None:
        return None

    def met(self, visitor: str) -> bool:
        return True

    def listens(self, visitor: str) -> bool:
        return True
