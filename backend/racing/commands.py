"""What a host may be asked to do: run a race, or look after what races leave behind."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from backend.events import Event, Failed, Finished, Preparing, failures
from backend.racing.loading import Loading
from backend.racing.models import LoadedModels
from backend.strategies.column import Column
from backend.types import ModelSpec

Emit = Callable[[Event], None]
Stopped = Callable[[], bool]


class Command(Protocol):
    """Frozen, and plain enough to be sent to another process."""

    @property
    def width(self) -> int:
        """How many columns end: in Finished or Failed, each once."""
        ...

    def run(self, models: LoadedModels, emit: Emit, stopped: Stopped) -> None:
        """Do it, emitting every event. Raises DerbyError for what the user can mend."""
        ...


@dataclass(frozen=True, slots=True)
class Measure:
    """Measure the times of passes on the models of these columns."""

    columns: tuple[Column, ...]
    target: ModelSpec
    width: int = 0

    def run(self, models: LoadedModels, emit: Emit, stopped: Stopped) -> None:
        loading = Loading(models, lambda text: emit(Preparing(text)))
        loading.prepare(self.columns, self.target, remeasure=True)


@dataclass(frozen=True, slots=True)
class ForgetVisitor:
    """Close the sessions of a visitor who has gone."""

    visitor: str
    width: int = 0

    def run(self, models: LoadedModels, emit: Emit, stopped: Stopped) -> None:
        models.sessions.forget(self.visitor)


def ending(columns: Iterable[int], events: Generator[Event, None, None]) -> Iterator[Event]:
    """The events, and after them an end for each of these columns that has none: stopped, or failed
    with what the events raised. They are closed in the end.
    """
    running = dict.fromkeys(columns)
    try:
        with closing(events):
            for event in events:
                _note(event, running)
                yield event
    except Exception as error:
        yield from failures(running, error)
    else:
        yield from (Finished(column, "stopped", []) for column in running)


def _note(event: Event, running: dict[int, None]) -> None:
    if isinstance(event, Finished | Failed):
        running.pop(event.column, None)


def run_to_end(command: Command, models: LoadedModels, emit: Emit, stopped: Stopped) -> None:
    """Run a command without ever raising: an error fails whichever columns have not ended yet."""
    running = dict.fromkeys(range(command.width))

    def tell(event: Event) -> None:
        _note(event, running)
        emit(event)

    try:
        command.run(models, tell, stopped)
    except Exception as error:
        for event in failures(running, error):
            emit(event)


def all_stopped(command: Command) -> Sequence[Event]:
    """The end of every column of a command that was stopped before it began."""
    return [Finished(column, "stopped", []) for column in range(command.width)]
