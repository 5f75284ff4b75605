"""A race: one request and a line-up of columns, each on the race's model or on one of its own."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from time import perf_counter

from backend.errors import DerbyError
from backend.events import Event, Finished, Preparing, Repeated, Step
from backend.racing.column import ColumnRun
from backend.racing.ledger import Ledger
from backend.racing.models import LoadedModels
from backend.racing.schedule import Lane, interleave
from backend.results.result import result_of
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import Column
from backend.strategies.libraries import SERVER
from backend.types import MAX_COLUMNS, ModelSpec, Request

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
        strategies = [column.strategy for column in self.columns]
        keep = (i for i, each in enumerate(strategies) if each.ours and each.keeps_cache)
        return next(keep, None)

    @property
    def _early(self) -> set[int]:
        """The columns that end at the photo finish: each of their tokens costs a whole text."""
        return {i for i, column in enumerate(self.columns) if not column.strategy.keeps_cache}

    def run(
        self, models: LoadedModels, emit: Callable[[Event], None], stopped: Callable[[], bool]
    ) -> None:
        """Run to the end or until `stopped()`, emitting every event. A column loads its model on
        its first turn, off every clock; one that cannot be loaded fails its own columns. One that
        keeps no cache ends at the photo finish.
        """
        models.begin(column.target(self.target) for column in self.columns if column.strategy.loads)
        board, finish, early = Scoreboard(self.columns), inf, self._early
        ledger = Ledger(each.settings()["at"] for each in self.columns if each.name == SERVER.name)

        def lane_of(index: int) -> Lane:
            column = self.columns[index]
            run = ColumnRun(
                index=index,
                column=column,
                spec=column.target(self.target),
                request=self.request,
                models=models,
                say=lambda text: emit(Preparing(text)),
                stopped=lambda: stopped() or at_finish(index),
                save_cache=self.save_cache if index == self.saved_column else None,
                restore_cache=self.restore_cache,
            )
            alone = column.strategy.alone or self.alone_from is not None
            return Lane(index, run.events(), run.clock, alone)

        def at_finish(index: int) -> bool:
            score = board.scores[index]
            return index in early and score.steps > 0 and score.seconds - score.start >= finish

        def note(event: Event) -> None:
            nonlocal finish
            board.add(event)
            if early and isinstance(event, Finished) and (result := result_of(board)).finished:
                finish = result.moment or 0.0
            emit(event)

        ends = list[Finished]()  # of columns that run again
        for event in interleave(list(map(lane_of, self._order)), stopped):
            if not isinstance(event, Finished):
                note(event)
            elif event.reason == "stopped":
                note(replace(event, reason="photo finish") if at_finish(event.column) else event)
            elif self.columns[event.column].strategy.alone and self.alone_from is None:
                ends.append(event)
            else:
                note(event)
        for event in self._repeated(ends, lane_of, stopped):
            note(event)
        emit(ledger.conditions())

    @property
    def _order(self) -> Sequence[int]:
        """The columns as they begin; those that end at the photo finish of others behind these."""
        order = range(len(self.columns))
        if self.alone_from is None:
            return order
        rotated = (*order[self.alone_from :], *order[: self.alone_from])
        return sorted(rotated, key=lambda index: index in self._early)

    def _repeated(
        self, ends: Sequence[Finished], lane_of: Callable[[int], Lane], stopped: Callable[[], bool]
    ) -> Iterator[Event]:
        """The other runs of columns that cannot be held, so that a change of the machine shows, and
        their ends, which come with the last ones.
        """
        began = perf_counter()
        for number in range(2, MOST_RUNS + 1):
            if stopped() or (number > 2 and perf_counter() - began > REPEATS):
                break
            for column in [end.column for end in ends]:
                title = self.columns[column].title
                yield Preparing(f"{title} runs again, alone, to see how sure its speed is...")
                *events, end = interleave([lane_of(column)], stopped)
                steps = [event for event in events if isinstance(event, Step)][1:]
                if steps and isinstance(end, Finished) and end.reason != "stopped":
                    times = [step.seconds["total"] for step in steps]
                    yield Repeated(column, times, [len(step.origins) for step in steps])
        yield from ends
