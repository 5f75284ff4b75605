"""A race as one value: what was asked, where it ran, and every event. All else is drawn from it."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from backend.errors import DerbyError
from backend.events import Event, Preparing
from backend.records.place import PROGRAM, Hardware, this_machine, versions
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import Column
from backend.types import ModelSpec, Request

#: What is of no race: a wait.
LEFT_OUT = (Preparing,)


@dataclass(frozen=True, slots=True)
class RaceRecord:
    """`made` is when, in UTC, as ISO 8601 writes it. `versions` are of programs, by name. `events`
    stand column by column, each one's in its order, those of no column last, whatever order they
    came in. Raises DerbyError for an event of a column that is not there.

    Whoever reads one from outside must not take it for trusted: `target` and the columns' own
    models may be paths on the reader's machine, which a page must neither open nor run. It is for
    the page to check them before a race, as it checks a form.
    """

    request: Request
    columns: tuple[Column, ...]
    target: ModelSpec
    made: str
    machine: Hardware
    versions: tuple[tuple[str, str], ...]
    events: tuple[Event, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.columns)
        ordered = tuple(sorted(self.events, key=lambda event: getattr(event, "column", count)))
        object.__setattr__(self, "events", ordered)
        beyond = max((getattr(event, "column", 0) for event in ordered), default=0)
        if beyond >= count:
            raise DerbyError(
                f"The record tells of column {beyond + 1} of a race of {count}: record it anew."
            )

    @property
    def place(self) -> str:
        """When, on what and by what version it was run, in a line."""
        machine, version = self.machine, dict(self.versions).get(PROGRAM, "unknown")
        return (
            f"{self.made}, {machine.processor or 'unknown processor'}, "
            f"{machine.cores:.3g} cores, {machine.memory / 2**30:.0f} GiB, {machine.system}, "
            f"{PROGRAM} {version}"
        )


def recorded(
    request: Request,
    columns: Iterable[Column],
    target: ModelSpec,
    events: Iterable[Event],
    made: str = "",
) -> RaceRecord:
    """The record of a race that was run here; `made` is now unless it is given."""
    kept = tuple(event for event in events if not isinstance(event, LEFT_OUT))
    made = made or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return RaceRecord(request, tuple(columns), target, made, this_machine(), versions(), kept)


def board(record: RaceRecord) -> Scoreboard:
    """The race as its reader saw it in the end."""
    made = Scoreboard(record.columns)
    for event in record.events:
        made.add(event)
    return made
