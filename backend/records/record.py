"""A race as one value: what was asked, where it ran, and every event. All else is drawn from it."""

import platform
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

from pydantic import Field

from backend.errors import DerbyError
from backend.events import Count, Event, Name, Preparing
from backend.machine import cores, processor
from backend.models.files import model_title
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import Column
from backend.types import ModelSpec, Request

_PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"

#: This program, as its project file calls it.
PROGRAM = "decode-derby"

#: Packages on whose versions figures or texts depend.
PACKAGES = (
    "openvino",
    "torch",
    "transformers",
    "optimum-intel",
    "xllamacpp",
    "llguidance",
    "numpy",
)


@dataclass(frozen=True, slots=True)
class Hardware:
    """The processor's name ("": unknown), how many cores' worth of time the process had, the bytes
    of memory, and the system's name and release.
    """

    processor: Name = ""
    cores: Annotated[float, Field(ge=0, le=2**16)] = 0.0
    memory: Count = 0
    system: Name = ""


@cache
def this_machine() -> Hardware:
    """The machine that this process runs on. Names neither host nor user."""
    import psutil

    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return Hardware(processor()[:200], float(cores()), psutil.virtual_memory().total, system[:200])


@cache
def versions() -> tuple[tuple[str, str], ...]:
    """Name and version of this program, of Python, and of those PACKAGES that are installed."""
    project = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]
    pairs = [(PROGRAM, str(project["version"])), ("python", platform.python_version())]
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            pairs.append((package, version(package)))
    return tuple(pairs)


@dataclass(frozen=True, slots=True)
class RaceRecord:
    """`made` is when, in UTC, as ISO 8601 writes it. `versions` are of programs, by name. Raises
    DerbyError for an event of a column that is not there.

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
        beyond = max((getattr(event, "column", 0) for event in self.events), default=0)
        if beyond >= count:
            raise DerbyError(
                f"The record tells of column {beyond + 1} of a race of {count}: record it anew."
            )

    @property
    def board(self) -> Scoreboard:
        """The race as its reader saw it in the end."""
        return Scoreboard(self.columns, self.events)

    @property
    def about(self) -> str:
        """What was asked on which model, when and where, in a line."""
        request = self.request
        loads = any(column.strategy.loads for column in self.columns)
        model = f"{replace(self.target, name=model_title(self.target.name))}, " if loads else ""
        length = f"{'exactly ' if request.ignore_eos else ''}{request.max_new_tokens} new tokens"
        return f"{model}{length}, {request.sampling}; {self.place}"

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
    request: Request, columns: Iterable[Column], target: ModelSpec, events: Iterable[Event]
) -> RaceRecord:
    """The record of a race that was run here, and ends now; waits are of no race."""
    events = (event for event in events if not isinstance(event, Preparing))
    made = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return RaceRecord(
        request, tuple(columns), target, made, this_machine(), versions(), tuple(events)
    )
