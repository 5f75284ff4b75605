"""One column's run as the scheduler sees it: events, and the clock that they advance."""

from collections.abc import Generator
from dataclasses import dataclass, field

from backend.decoding.clock import Clock
from backend.events import Event


def _nothing() -> Generator[Event | None]:
    yield from ()


@dataclass(slots=True, eq=False)
class Lane:
    """It does its work inside `next(events)`, when the scheduler gives it the turn; once the race
    is stopped it computes nothing more and ends. One that cannot be held runs `alone`, behind the
    others: None is where no event has come for a moment. `finishes`: its end is a photo finish;
    `ends_early`: it ends at the photo finish.
    """

    column: int
    events: Generator[Event | None] = field(default_factory=_nothing)
    clock: Clock = field(default_factory=Clock)
    alone: bool = False
    finishes: bool = False
    ends_early: bool = False
    first_token: float | None = None  # what its clock read then; None: it has written nothing

    @property
    def wrote(self) -> bool:
        """True once it has written a token."""
        return self.first_token is not None

    @property
    def decoding(self) -> float:
        """Seconds on its clock behind its first token; -1 before that."""
        return -1.0 if self.first_token is None else self.clock.seconds - self.first_token
