"""A race as its reader sees it: every column's score, and how the columns compare."""

from collections.abc import Sequence
from dataclasses import dataclass

from backend.events import Event, Preparing
from backend.results.metrics import Score
from backend.strategies.registry import BASELINE, Strategy

#: Why a column that is not lossless leaves KV reuse; True for a program generated as a whole.
_DEMANDS = {False: "as its grammar demands", True: "as its text is generated, not fed"}

ENDED = ("done", "stopped", "failed")


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token at which a column departs from the baseline.

    `gap` is the distance between the baseline's two best scores there: near zero means a numeric
    tie, anything else a real difference.
    """

    index: int
    gap: float


class Scoreboard:
    """Fold a race's events in with `add`; read `scores`, aligned with `columns`."""

    def __init__(self, columns: Sequence[Strategy]) -> None:
        self.columns = tuple(columns)
        self.scores = [Score() for _ in self.columns]
        self.preparing = ""

    def add(self, event: Event) -> None:
        if isinstance(event, Preparing):
            self.preparing = event.text
            return
        self.preparing = ""
        self.scores[event.column].add(event)

    @property
    def ended(self) -> bool:
        return all(score.state in ENDED for score in self.scores)

    @property
    def baseline(self) -> Score | None:
        """The KV-reuse column's score, if it runs and has not failed."""
        index = self._baseline()
        return None if index is None else self.scores[index]

    def _baseline(self) -> int | None:
        pairs = enumerate(zip(self.columns, self.scores, strict=True))
        running = (
            i for i, (row, score) in pairs if row.name == BASELINE and score.state != "failed"
        )
        return next(running, None)

    def reference(self, index: int) -> int | None:
        """The column whose text column `index` is compared with: the plain one with the same
        grammar, or else KV reuse; None if there is no such other column.
        """
        own, base = self.columns[index], self._baseline()
        if index == base:
            return None
        for i, (strategy, score) in enumerate(zip(self.columns, self.scores, strict=True)):
            alike = strategy.plain and strategy.grammar == own.grammar
            if i != index and alike and not own.plain and score.state != "failed":
                return i
        return base

    def difference(self, index: int) -> Difference | None:
        """Where column `index` departs from its reference; None as far as both have come."""
        reference = self.reference(index)
        if reference is None:
            return None
        base = self.scores[reference]
        pairs = zip(self.scores[index].tokens, base.tokens, strict=False)
        for i, (ours, theirs) in enumerate(pairs):
            if ours != theirs:
                return Difference(i, base.gaps[i])
        return None

    def verdict(self, index: int) -> str:
        """One sentence on whether column `index` wrote what it should have; "" if unknown."""
        reference, score, strategy = self.reference(index), self.scores[index], self.columns[index]
        if reference is None or not score.tokens or not self.scores[reference].tokens:
            return ""
        base, title = self.scores[reference], self.columns[reference].title
        found = self.difference(index)
        if found is None:
            compared = min(len(score.tokens), len(base.tokens))
            if not score.state == base.state == "done":
                return f"identical to {title} so far ({compared} tokens)"
            if len(score.tokens) < len(base.tokens):
                return f"identical to {title} as far as it went ({compared} tokens)"
            return f"identical to {title} ({compared} tokens)"
        place = f"{title} at token {found.index + 1}"
        if not self.may_differ(index):
            return f"differs from {place}, where the two best scores lay {found.gap:.2g} apart"
        why = "after its context was shifted" if score.shifts else _DEMANDS[strategy.single]
        return f"leaves {place}, {why}"

    def may_differ(self, index: int) -> bool:
        """True if the column may differ from its reference where it does."""
        found, score = self.difference(index), self.scores[index]
        shifted = score.shifts and found is not None and found.index >= score.shifts[0].at
        return bool(shifted) or not self.must_match(index)

    def must_match(self, index: int) -> bool:
        """True if the column must write what its reference writes."""
        reference, strategy = self.reference(index), self.columns[index]
        alike = reference is not None and self.columns[reference].grammar == strategy.grammar
        return alike and not strategy.single

    def speedup(self, index: int) -> float:
        """Baseline TPOT over this column's; 0 while unknown."""
        base = self.baseline
        return 0.0 if base is None else self.scores[index].speedup_over(base)
