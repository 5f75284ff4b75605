"""What a host may be asked to do: run a race, or look after what races leave behind."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from backend.events import Event, Failed, Finished, Preparing, failures
from backend.kvcache.snapshots import default_folder
from backend.kvcache.sources import Visitor
from backend.racing.column_run import ColumnRun
from backend.racing.loading import Loading
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.strategies.column import Column
from backend.types import AnswerSoFar, ModelSpec


class Command(Protocol):
    """Frozen, and plain enough to be sent to another process."""

    @property
    def width(self) -> int:
        """How many columns end: in Finished or Failed, each once."""
        ...

    def run(
        self, models: LoadedModels, emit: Callable[[Event], None], stopped: Callable[[], bool]
    ) -> None:
        """Do it, emitting every event. Raises DerbyError for what the user can mend."""
        ...


@dataclass(frozen=True, slots=True)
class SaveColumn:
    """Write what is held of the race's column `index`, which stopped at `answer`, to disk.

    `owner` is the secret hash of the visitor who asks; "": the command line.
    """

    race: Race
    index: int
    answer: AnswerSoFar
    owner: str = ""
    width: int = 1

    def run(
        self, models: LoadedModels, emit: Callable[[Event], None], stopped: Callable[[], bool]
    ) -> None:
        race = self.race
        loading = Loading(models, lambda text: emit(Preparing(text)), race.request.context)
        run = ColumnRun(
            0, race.columns[self.index], self.answer, race.request, race.target, race.scope
        )
        emit(run.save(loading, self.owner))
        emit(Finished(0, "stopped", []))


@dataclass(frozen=True, slots=True)
class MeasureCosts:
    """Find out anew what passes cost on the models of these columns."""

    columns: tuple[Column, ...]
    target: ModelSpec
    width: int = 0

    def run(
        self, models: LoadedModels, emit: Callable[[Event], None], stopped: Callable[[], bool]
    ) -> None:
        loading = Loading(models, lambda text: emit(Preparing(text)))
        loading.prepare(self.columns, self.target, remeasure=True)


@dataclass(frozen=True, slots=True)
class MeasureLoad:
    """Find out what passes cost that serve several requests, on the models of these columns."""

    columns: tuple[Column, ...]
    target: ModelSpec
    width: int = 0

    def run(
        self, models: LoadedModels, emit: Callable[[Event], None], stopped: Callable[[], bool]
    ) -> None:
        loading = Loading(models, lambda text: emit(Preparing(text)))
        loading.prepare(self.columns, self.target)
        local = [column for column in self.columns if column.strategy.lane is None]
        for spec in dict.fromkeys(column.target(self.target) for column in local):
            models.measure_load(loading.engine(spec), lambda text: emit(Preparing(text)), stopped)


@dataclass(frozen=True, slots=True)
class ForgetVisitor:
    """Drop the caches of a visitor who has gone."""

    visitor: str
    width: int = 0

    def run(
        self, models: LoadedModels, emit: Callable[[Event], None], stopped: Callable[[], bool]
    ) -> None:
        models.prefixes.forget(Visitor(self.visitor))
        default_folder(models.limits).tidy()  # old snapshots go now and then, as visitors do


class OpenColumns:
    """The columns of a command that have not ended yet: each ends once, whatever happens."""

    def __init__(self, columns: Iterable[int]) -> None:
        self._open = dict.fromkeys(columns)

    def seen(self, event: Event) -> Event:
        """Take note of an event, and return it."""
        if isinstance(event, Finished | Failed):
            self._open.pop(event.column, None)
        return event

    def passing(self, events: Generator[Event, None, None]) -> Iterator[Event]:
        """The events, of which note is taken; they are closed in the end."""
        with closing(events):
            for event in events:
                yield self.seen(event)

    def stopped(self) -> Sequence[Event]:
        """How they end if the command was stopped."""
        return [Finished(column, "stopped", []) for column in self._open]

    def failed(self, error: BaseException) -> Sequence[Event]:
        """How they end with an error."""
        return failures(self._open, error)


def run_to_end(
    command: Command,
    models: LoadedModels,
    emit: Callable[[Event], None],
    stopped: Callable[[], bool],
) -> None:
    """Run a command without ever raising: an error fails whichever columns have not ended yet."""
    columns = OpenColumns(range(command.width))
    try:
        command.run(models, lambda event: emit(columns.seen(event)), stopped)
    except Exception as error:
        for event in columns.failed(error):
            emit(event)


def all_stopped(command: Command) -> Sequence[Event]:
    """The end of every column of a command that was stopped before it began."""
    return OpenColumns(range(command.width)).stopped()
