"""A race: one request and a line-up of columns, each on the race's model or on one of its own."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from time import perf_counter

from backend.errors import DerbyError
from backend.events import Event, Finished, Preparing, Repeated, Step
from backend.racing.column import ColumnRun
from backend.racing.ledger import Ledger
from backend.racing.models import LoadedModels
from backend.racing.schedule import Lane, PhotoFinish, interleave
from backend.strategies.column import Column
from backend.strategies.libraries import SERVER
from backend.types import ModelSpec, Request

MAX_COLUMNS = 12

#: Runs of a column that cannot be held: two, or as many as begin within so many seconds.
MOST_RUNS, REPEATS = 4, 15.0


@dataclass(frozen=True, slots=True)
class Race:
    """`target` is the model of every column that names none of its own. Of columns that keep a
    cache, `saved_column` writes its own into the file `save_cache` when it ends, and all begin with
    what is in `restore_cache`. `alone_from`: the columns run alone and once, one after another,
    from this one on; None: they take turns, and those that cannot be held run alone, twice or more.
    """

    request: Request
    columns: tuple[Column, ...]
    target: ModelSpec = field(default_factory=ModelSpec)
    save_cache: Path | None = None
    restore_cache: Path | None = None
    alone_from: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.columns) <= MAX_COLUMNS:
            raise DerbyError(
                f"{len(self.columns)} columns were chosen; a race has 1 to {MAX_COLUMNS}."
            )

    @property
    def saved_column(self) -> int | None:
        """The column whose cache can be saved: the first that keeps one; None: there is none."""
        keep = (i for i, column in enumerate(self.columns) if column.strategy.saves_cache)
        return next(keep, None)

    def run(
        self, models: LoadedModels, emit: Callable[[Event], None], stopped: Callable[[], bool]
    ) -> None:
        """Run to the end or until `stopped()`, emitting every event. A column loads its model on
        its first turn, off every clock; one that cannot be loaded fails its own columns.
        """

        def preparing(text: str) -> None:
            emit(Preparing(text))

        models.begin(column.target(self.target) for column in self.columns if column.strategy.loads)
        finish = PhotoFinish()
        ledger = Ledger(each.settings()["at"] for each in self.columns if each.name == SERVER.name)
        scratch = max(column.scratch_depth for column in self.columns)

        def lane_of(index: int) -> Lane:
            column = self.columns[index]
            strategy, spec = column.strategy, column.target(self.target)
            temperature = self.request.sampling.temperature
            run = ColumnRun(
                index=index,
                column=column,
                spec=spec,
                request=self.request,
                models=models,
                say=preparing,
                scratch=scratch,
                stopped=lambda: stopped() or finish.ends(lane),
                save_cache=self.save_cache if index == self.saved_column else None,
                restore_cache=self.restore_cache,
            )
            plain_text = column.grammar is None and column.keeps_text(temperature)
            lane = Lane(
                index,
                run.events(),
                run.clock,
                alone=strategy.alone,
                finishes=strategy.ours and spec == self.target and plain_text,
                ends_early=not strategy.keeps_cache,
            )
            return lane

        for event in self._events(lane_of, stopped, finish):
            emit(event)
        emit(ledger.conditions())

    def _events(
        self, lane_of: Callable[[int], Lane], stopped: Callable[[], bool], finish: PhotoFinish
    ) -> Iterator[Event]:
        """The events of all lanes. Those that cannot be held run before the others, and again
        behind them, so that a change of the machine shows; they end with their last run.
        """
        lanes = list(map(lane_of, range(len(self.columns))))
        if self.alone_from is not None:
            order = (*lanes[self.alone_from :], *lanes[: self.alone_from])
            for lane in sorted(order, key=lambda lane: lane.ends_early):
                yield from interleave([lane], stopped, finish=finish)
            return
        ends: list[Finished] = []
        for lane in filter(attrgetter("alone"), lanes):
            for event in interleave([lane], stopped):
                if isinstance(event, Finished) and event.reason != "stopped":
                    ends.append(event)
                else:
                    yield event
        yield from interleave([lane for lane in lanes if not lane.alone], stopped, finish=finish)
        began = perf_counter()
        for number in range(2, MOST_RUNS + 1):
            if stopped() or (number > 2 and perf_counter() - began > REPEATS):
                break
            for end in ends:
                title = self.columns[end.column].title
                yield Preparing(f"{title} runs again, alone, to see how sure its speed is...")
                yield from _repeated(lane_of(end.column), stopped)
        yield from ends


def _repeated(lane: Lane, stopped: Callable[[], bool]) -> Iterator[Repeated]:
    """What a lane took that ran to its end; nothing if it did not."""
    *events, end = interleave([lane], stopped)
    steps = [event for event in events if isinstance(event, Step)][1:]
    if steps and isinstance(end, Finished) and end.reason != "stopped":
        times, tokens = [step.seconds["total"] for step in steps], [len(s.origins) for s in steps]
        yield Repeated(lane.column, times, tokens)
