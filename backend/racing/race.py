"""A race: one request and a line-up of columns, each on the race's model or on one of its own."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

from backend.decoding.lane import Lane
from backend.errors import DerbyError
from backend.events import Event, Preparing
from backend.programs.parser import is_program
from backend.racing.column_run import ColumnRun
from backend.racing.ledger import Ledger
from backend.racing.loading import Loading
from backend.racing.models import LoadedModels
from backend.racing.reading import Readings
from backend.racing.schedule import PhotoFinish, interleave
from backend.strategies.column import Column
from backend.text import prompt_tokens, require_fits, takes_chats
from backend.types import ModelSpec, Request

MAX_COLUMNS = 12


@dataclass(frozen=True, slots=True)
class Race:
    """`target` is the model of every column that names none of its own. `visitor` is whose sessions
    may be used and are kept; "": nobody's. Of columns that keep a cache, `saved_column` writes its
    own into the file `save_cache` when it ends, and all begin with what is in `restore_cache`.
    `first`: the columns run alone, one after another, this one first; None: they take turns, and
    those that cannot be held run after them. A column without a cache ends at the photo finish, and
    so runs last where columns run alone.
    `raw_allowed`: a target without a chat template gets the prompt as it is.
    """

    request: Request
    columns: tuple[Column, ...]
    target: ModelSpec = field(default_factory=ModelSpec)
    visitor: str = ""
    save_cache: Path | None = None
    restore_cache: Path | None = None
    first: int | None = None
    raw_allowed: bool = False

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

    @property
    def width(self) -> int:
        """How many columns end."""
        return len(self.columns)

    def run(
        self, models: LoadedModels, emit: Callable[[Event], None], stopped: Callable[[], bool]
    ) -> None:
        """Run to the end or until `stopped()`, emitting every event.

        Each model is loaded once, off every clock: those that columns wait for one after another,
        while the columns before them show their first tokens. Raises DerbyError if the models
        cannot all be kept, or the target cannot hold the prompt; one that cannot be loaded fails
        its own columns.
        """
        loading = Loading(models, lambda text: emit(Preparing(text)))
        first, *later = loading.batches(self.columns, self.target)
        self._load(first, loading)
        fitting = self._fitting(loading)
        if any(self._runs_on_target(self.columns[index]) for index in first):
            self._require_fits(fitting.request, loading)
        if self.first is None:
            ours = [column for column in self.columns if column.strategy.ours]
            loading.readings = Readings(column.target(self.target) for column in ours)
        finish = PhotoFinish()
        lanes = fitting.lanes(first, later, loading, finish, stopped)
        ledger = Ledger()
        for group in self._groups(lanes):
            for event in interleave(group, stopped, finish=finish):
                emit(event)
                if (found := ledger.turned()) is not None:
                    emit(found)
        emit(replace(ledger.conditions(), raw=fitting is not self))

    def _writes_plain_text(self, column: Column) -> bool:
        """True if it promises the text of plain decoding on the race's target."""
        keeps = column.lossless and column.keeps_text(self.request.sampling.temperature)
        return keeps and self._runs_on_target(column)

    def _runs_on_target(self, column: Column) -> bool:
        """True if it is on the race's target, and none that a library decodes."""
        return column.strategy.ours and column.target(self.target) == self.target

    def _require_fits(self, request: Request, loading: Loading) -> None:
        """Raise DerbyError if no column on the race's target could write anything: each would say
        so. What else is wrong is for the columns to tell.
        """
        if is_program(request.prompt):  # its text is fed slot by slot
            return
        try:
            engine = loading.engine(self.target)
            prompt = len(prompt_tokens(engine.tokenizer, request))
        except Exception:
            return
        most = engine.max_context
        require_fits(prompt, min(request.context or most, most))

    def _fitting(self, loading: Loading) -> "Race":
        """This race, raw if that is allowed and the target has no chat template."""
        if self.raw_allowed and self.request.chat:
            with suppress(Exception):  # a model that cannot be loaded is for its columns to tell
                if not takes_chats(loading.engine(self.target).tokenizer):
                    return replace(self, request=replace(self.request, chat=False))
        return self

    def lanes(
        self,
        first: Sequence[int],
        later: Iterable[Sequence[int]],
        loading: Loading,
        finish: PhotoFinish,
        stopped: Callable[[], bool],
    ) -> list[Lane]:
        """All columns, in their order: the `first` ones, whose models are loaded, and batches of
        others.
        """
        lanes: dict[int, Lane] = {}

        def ends(index: int) -> bool:
            return stopped() or finish.ends(lanes[index])

        for index in first:
            lanes[index] = self.lane(index, loading, partial(ends, index))
        for batch in later:
            load = cache(partial(self._load, batch, loading))
            for index in batch:
                lanes[index] = self.later(index, load, loading, partial(ends, index))
        for index, lane in lanes.items():
            lane.finishes = self._writes_plain_text(self.columns[index])
            lane.ends_early = not self.columns[index].strategy.keeps_cache
        return [lanes[index] for index in sorted(lanes)]

    def lane(self, index: int, loading: Loading, stopped: Callable[[], bool]) -> Lane:
        """One of the columns, ready to run."""
        saving = index == self.saved_column
        run = ColumnRun(
            index,
            self.columns[index],
            self.request,
            self.target,
            self.visitor,
            self.save_cache if saving else None,
            self.restore_cache,
        )
        return run.lane(loading, stopped)

    def later(
        self,
        index: int,
        load: Callable[[], None],
        loading: Loading,
        stopped: Callable[[], bool],
    ) -> Lane:
        """One of the columns that calls `load` on its first turn."""

        def events() -> Iterator[Event | None]:
            load()
            loaded = self.lane(index, loading, stopped)
            lane.clock, lane.ready = loaded.clock, True
            yield from loaded.events

        lane = Lane(index, events(), ready=False, alone=self.columns[index].strategy.alone)
        return lane

    def _load(self, batch: Sequence[int], loading: Loading) -> None:
        loading.load([self.columns[index] for index in batch], self.target)

    def _groups(self, lanes: Sequence[Lane]) -> Iterable[Sequence[Lane]]:
        """The lanes that run at one time, in the order of their times."""
        if self.first is None:
            alone = [[lane] for lane in lanes if lane.alone]
            return [[lane for lane in lanes if not lane.alone], *alone]
        order = (*lanes[self.first :], *lanes[: self.first])
        return [[lane] for lane in sorted(order, key=lambda lane: lane.ends_early)]
