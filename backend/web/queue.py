"""The queue of visitors: one race runs at a time, so that nobody's timings are spoiled."""

import threading
from typing import Generic, TypeVar

Place = TypeVar("Place")


class RaceQueue(Generic[Place]):
    """First come, first served. Thread-safe. Places are told apart by identity."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: list[Place] = []

    def join(self, place: Place) -> None:
        """Stand at the end."""
        with self._lock:
            self._places.append(place)

    def ahead(self, place: Place) -> int:
        """How many are in front of this one; 0 means that it is its turn, or was."""
        with self._lock:
            return next((i for i, other in enumerate(self._places) if other is place), 0)

    def leave(self, place: Place) -> None:
        """Give the place up. Idempotent."""
        with self._lock:
            self._places = [other for other in self._places if other is not place]

    @property
    def places(self) -> tuple[Place, ...]:
        """All of them, the one whose turn it is first."""
        with self._lock:
            return tuple(self._places)
