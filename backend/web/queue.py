"""The queue of visitors: one race runs at a time, so that nobody's timings are spoiled."""

import threading


class RaceQueue:
    """First come, first served. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tickets: list[object] = []

    def join(self) -> object:
        """Take a place at the end; give it back with `leave`, come what may."""
        ticket = object()
        with self._lock:
            self._tickets.append(ticket)
        return ticket

    def ahead(self, ticket: object) -> int:
        """How many are in front of this ticket; 0 means that it is its turn, or was."""
        with self._lock:
            return self._tickets.index(ticket) if ticket in self._tickets else 0

    def leave(self, ticket: object) -> None:
        """Give the place up. Idempotent."""
        with self._lock:
            if ticket in self._tickets:
                self._tickets.remove(ticket)
