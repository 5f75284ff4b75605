"""Loads the models of a race: each once, while no clock runs; every column gets its error."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from backend.costs.pass_costs import Costs
from backend.engines.base import Engine
from backend.engines.draft import OpenNetwork
from backend.errors import DerbyError
from backend.racing.models import LoadedModels
from backend.racing.reading import Readings
from backend.strategies.column import Column
from backend.strategies.declaration import Weights
from backend.types import ModelSpec

Say = Callable[[str], None]


class Loading:
    """One race's view of `models`. Everything raises DerbyError for what cannot be had."""

    def __init__(self, models: LoadedModels, say: Say) -> None:
        self.models, self.say = models, say
        self.readings = Readings()  # of columns that read their prompt once
        self._tried: dict[ModelSpec, Any] = {}  # what was loaded, or why it was not
        self._needed: list[ModelSpec] = []  # by this race so far: its targets, then its drafts

    def engine(self, spec: ModelSpec) -> Any:
        """The engine, or the library's model, that runs `spec`."""
        if spec not in self._tried:
            try:
                if spec not in self._needed:
                    self.models.require_room([*self._needed, spec], self.say)
                    self._needed.append(spec)
                self._tried[spec] = self.models.get(spec, self.say)
            except Exception as error:
                self._tried[spec] = error
        engine = self._tried[spec]
        if isinstance(engine, Exception):
            raise engine
        return engine

    def costs(self, engine: Engine) -> Costs:
        """What its passes are known to cost."""
        return self.models.costs(engine)

    def call_seconds(self, draft: Engine) -> float:
        """What a pass of a model that drafts takes, over one row."""
        return self.models.call_seconds(draft)

    def head(self, target: Engine, weights: Weights) -> OpenNetwork | None:
        """What opens the draft's network; None where a model drafts, or nothing."""
        if callable(weights):
            return weights
        if not isinstance(weights, Path):
            return None
        return self.models.head(target, weights, self.say)

    def draft(self, target: ModelSpec, weights: Weights) -> tuple[Engine | None, str]:
        """The model that drafts, or None; and why there is none if one was wanted that the column
        can do without: a clause without a remedy, because nothing is amiss.
        """
        if not isinstance(weights, ModelSpec):
            return None, ""
        try:
            return self.engine(weights), ""
        except DerbyError as error:
            if weights.name != target.name:  # else a copy of the target, which is no must
                raise
            return None, error.reason

    def prepare(
        self, columns: Sequence[Column], default: ModelSpec, *, remeasure: bool = False
    ) -> None:
        """Load now what all these columns will ask for: see `batches` and `load`."""
        for batch in self.batches(columns, default):
            self.load([columns[i] for i in batch], default, remeasure=remeasure)

    def batches(self, columns: Sequence[Column], default: ModelSpec) -> list[list[int]]:
        """The columns' numbers in the order in which their models come: before each batch but the
        first, one must be loaded. Columns without a model here are in the last batch: loading would
        hold up a server on this machine.

        Raises DerbyError if the targets cannot all be kept in memory.
        """
        by_target: dict[ModelSpec, list[int]] = {}
        others: list[int] = []
        for i, column in enumerate(columns):
            if column.strategy.loads:
                by_target.setdefault(column.target(default), []).append(i)
            else:
                others.append(i)
        self.models.require_room(by_target, self.say)
        self._needed = list(by_target)
        batches: list[list[int]] = [[]]
        for target, numbers in by_target.items():
            if batches[-1] and not self.models.has(target):
                batches.append([])
            batches[-1] += numbers
        batches[-1] += others
        return batches

    def load(
        self, columns: Sequence[Column], default: ModelSpec, *, remeasure: bool = False
    ) -> None:
        """Load what these columns of one batch will ask for, each model once, and measure what
        passes cost of those on which a column decides by that; a model that cannot be loaded is for
        its columns to tell. `remeasure` measures all of them, and even what was measured.
        """
        measured: set[ModelSpec] = set()
        for column in columns:
            if not column.strategy.loads:
                continue
            target = column.target(default)
            try:
                engine = self.engine(target)
                if column.strategy.library is not None:
                    self.fetch_drafts(column)
                    continue
                weights = self.weights(column, engine)
                draft, _ = self.draft(target, weights)
                self.head(engine, weights)
            except Exception:  # noqa: S112 (the column meets it again, and tells)
                continue
            for priced in (engine, draft) if remeasure else (engine,) if column.automatic else ():
                if priced is not None and priced.spec not in measured:
                    measured.add(priced.spec)
                    self.models.price(priced, self.say, remeasure=remeasure)
            if draft is not None:
                self.call_seconds(draft)

    def fetch_drafts(self, column: Column) -> None:
        """Have the files of the Hub's models that its settings name here."""
        for name in column.drafts.values():
            self.models.fetch(name, self.say)

    def weights(self, column: Column, target: Engine) -> Weights:
        """What the column's drafter needs, that of the Hub fetched: its files tell of what kind it
        is.
        """
        self.fetch_drafts(column)
        return column.strategy.weights(column.settings(), target)
