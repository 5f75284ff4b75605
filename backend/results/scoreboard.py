"""A race as its reader sees it: every column's score, and how the columns compare."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from backend.events import Conditions, Event, Preparing
from backend.results.score import ENDED, Score
from backend.strategies.column import RACE_MODEL, Column
from backend.strategies.registry import BASELINE


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token at which a column departs from its reference.

    `gap` is the distance between the reference's two best scores there: near zero means that
    rounding decided, anything else a real difference; infinite: unknown.
    """

    index: int
    gap: float


class Scoreboard:
    """Fold a race's events in with `add`; read `scores`, aligned with `columns`."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)
        self.scores = [Score() for _ in self.columns]
        self.preparing = ""
        self.conditions: Conditions | None = None
        self._agreed: Counter[tuple[int, int]] = Counter()

    def add(self, event: Event) -> None:
        self.preparing = event.text if isinstance(event, Preparing) else ""
        match event:
            case Preparing():
                pass
            case Conditions():
                self.conditions = event
            case _:
                self.scores[event.column].add(event)

    @property
    def ended(self) -> bool:
        return all(score.state in ENDED for score in self.scores)

    def name(self, index: int) -> str:
        """What to call a column so that no other one of this race is meant."""
        column = self.columns[index]
        titles = [other.title for other in self.columns]
        labels = [other.label for other in self.columns]
        if titles.count(column.title) == 1:
            return column.title
        if labels.count(column.label) == 1:
            return column.label
        return f"{column.label}, column {index + 1}"

    @property
    def baseline_index(self) -> int | None:
        """The first KV-reuse column that has not failed; one without a grammar goes first, and of
        these one on the race's own target.
        """
        running = [
            (column.grammar is not None, column.model != RACE_MODEL, i)
            for i, (column, score) in enumerate(zip(self.columns, self.scores, strict=True))
            if column.name == BASELINE and score.state != "failed"
        ]
        return min(running)[-1] if running else None

    @property
    def baseline(self) -> Score:
        """The score of the column that others are compared with; an empty one if there is none."""
        index = self.baseline_index
        return Score() if index is None else self.scores[index]

    def reference(self, index: int) -> int | None:
        """The column whose text column `index` is compared with: the plain one with the same
        grammar on the same weights, or else the baseline; None if there is no such other column.
        """
        own, base = self.columns[index], self.baseline_index
        if index == base:
            return None
        for i, (column, score) in enumerate(zip(self.columns, self.scores, strict=True)):
            alike = column.plain and column.grammar == own.grammar and self._same_weights(i, index)
            if i != index and alike and not own.plain and score.state != "failed":
                return i
        return base

    def _same_weights(self, one: int, other: int) -> bool:
        """True if both are known to run the same model on the same engine, precision and device."""
        spec = self.scores[one].spec
        return bool(spec) and spec == self.scores[other].spec

    def by_text(self, index: int) -> bool:
        """True if texts are compared, not tokens, because the ids of the column are unknown."""
        return self.reference(index) is not None and not self.scores[index].tokenizer

    def sides(self, index: int) -> tuple[Sequence[int | str], Sequence[int | str]]:
        """What the column and its reference wrote, as it can be compared: ids, or characters."""
        reference, own = self.reference(index), self.scores[index]
        if reference is None:
            return (), ()
        base = self.scores[reference]
        if own.tokenizer and own.tokenizer == base.tokenizer:  # an id means the same in both
            return own.tokens, base.tokens
        return (own.text, base.text) if self.by_text(index) else ((), ())

    def compared(self, index: int) -> int:
        """How many of the column's tokens, or characters, could be compared."""
        return min(map(len, self.sides(index)))

    def difference(self, index: int) -> Difference | None:
        """Where column `index` departs from its reference; None as far as both have come."""
        reference, (ours, theirs) = self.reference(index), self.sides(index)
        compared = min(len(ours), len(theirs))
        if reference is None or not compared:
            return None
        base = self.scores[reference]
        agreed = self._agreed[index, reference]  # known since an earlier look
        while agreed < compared and ours[agreed] == theirs[agreed]:
            agreed += 1
        self._agreed[index, reference] = agreed
        if agreed == compared:
            return None
        at = base.token_at(agreed) if self.by_text(index) else agreed
        return Difference(at, base.gaps[at] if at < len(base.gaps) else inf)

    def must_match(self, index: int) -> bool:
        """True if the column must write what its reference writes."""
        reference = self.reference(index)
        if reference is None or not self.scores[index].keeps_text:
            return False
        alike = self.columns[reference].grammar == self.columns[index].grammar
        return alike and self._same_weights(index, reference)

    def keeps_text(self, index: int) -> bool:
        """True if the column promises the baseline's text: no grammar, and the same weights."""
        base = self.baseline_index
        alike = base is None or index == base or self._same_weights(index, base)
        return alike and self.columns[index].lossless and self.scores[index].keeps_text

    def control(self, index: int) -> bool:
        """True if the column does what the baseline does, on the same weights: chance alone has
        made it faster or slower.
        """
        base, column, score = self.baseline_index, self.columns[index], self.scores[index]
        if base is None or index == base or column.grammar != self.columns[base].grammar:
            return False
        idle = column.plain or (score.decision.plain and not score.drafted)
        return idle and self._same_weights(index, base)
