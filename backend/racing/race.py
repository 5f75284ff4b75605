"""A race: one request and a line-up of columns, each on the race's model or on one of its own."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from backend.errors import DerbyError
from backend.events import Event, Preparing
from backend.racing.column import ColumnRun
from backend.racing.ledger import Ledger
from backend.racing.models import LoadedModels, Say
from backend.racing.schedule import Lane, PhotoFinish, interleave
from backend.strategies.column import Column
from backend.strategies.libraries import SERVER
from backend.text import takes_chats
from backend.types import ModelSpec, Request

MAX_COLUMNS = 12


@dataclass(frozen=True, slots=True)
class Race:
    """`target` is the model of every column that names none of its own. Of columns that keep a
    cache, `saved_column` writes its own into the file `save_cache` when it ends, and all begin with
    what is in `restore_cache`. `alone_from`: the columns run alone, one after another, from this
    one on; None: they take turns, and those that cannot be held run after them. `raw_allowed`: a
    target without a chat template gets the prompt as it is.
    """

    request: Request
    columns: tuple[Column, ...]
    target: ModelSpec = field(default_factory=ModelSpec)
    save_cache: Path | None = None
    restore_cache: Path | None = None
    alone_from: int | None = None
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

    def run(
        self, models: LoadedModels, emit: Callable[[Event], None], stopped: Callable[[], bool]
    ) -> None:
        """Run to the end or until `stopped()`, emitting every event. A column loads its model on
        its first turn, off every clock; one that cannot be loaded fails its own columns.
        """

        def preparing(text: str) -> None:
            emit(Preparing(text))

        models.begin(column.target(self.target) for column in self.columns if column.strategy.loads)
        request, finish = self._raw_if_needed(models, preparing), PhotoFinish()
        ledger = Ledger(each.settings()["at"] for each in self.columns if each.name == SERVER.name)
        scratch = max(column.scratch_depth for column in self.columns)

        def lane_of(index: int, column: Column) -> Lane:
            strategy, spec = column.strategy, column.target(self.target)
            run = ColumnRun(
                index=index,
                column=column,
                spec=spec,
                request=request,
                models=models,
                say=preparing,
                scratch=scratch,
                stopped=lambda: stopped() or finish.ends(lane),
                save_cache=self.save_cache if index == self.saved_column else None,
                restore_cache=self.restore_cache,
            )
            plain_text = column.grammar is None and column.keeps_text(request.sampling.temperature)
            lane = Lane(
                index,
                run.events(),
                run.clock,
                alone=strategy.alone,
                finishes=strategy.ours and spec == self.target and plain_text,
                ends_early=not strategy.keeps_cache,
            )
            return lane

        lanes = [lane_of(index, column) for index, column in enumerate(self.columns)]
        for group in self._groups(lanes):
            for event in interleave(group, stopped, finish=finish):
                emit(event)
        emit(replace(ledger.conditions(), raw=request is not self.request))

    def _raw_if_needed(self, models: LoadedModels, preparing: Say) -> Request:
        """The request, raw if that is allowed and the target has no chat template."""
        if self.raw_allowed and self.request.chat:
            with suppress(Exception):  # a model that cannot be loaded is for its columns to name
                if not takes_chats(models.get(self.target, preparing).tokenizer):
                    return replace(self.request, chat=False)
        return self.request

    def _groups(self, lanes: Sequence[Lane]) -> Iterable[Sequence[Lane]]:
        """The lanes that run at one time, in the order of their times. Where all run alone, one
        that ends at the photo finish runs last.
        """
        if self.alone_from is None:
            alone = [[lane] for lane in lanes if lane.alone]
            return [[lane for lane in lanes if not lane.alone], *alone]
        order = (*lanes[self.alone_from :], *lanes[: self.alone_from])
        return [[lane] for lane in sorted(order, key=lambda lane: lane.ends_early)]
