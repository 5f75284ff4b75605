"""A race as its reader sees it: a score a column, folded of its events, and how they compare."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Literal

from backend.costs import UNKNOWN_COSTS, PassCosts
from backend.events import (
    Conditions,
    CostsKnown,
    Decided,
    Event,
    Failed,
    Fed,
    Filled,
    Finished,
    Judged,
    Prefilled,
    Prepared,
    Preparing,
    Proposed,
    Repeated,
    Served,
    Started,
    Step,
)
from backend.strategies.column import Column, baseline_of, names_of

State = Literal["queued", "prefill", "decoding", "done", "stopped", "failed"]
ENDED = ("done", "stopped", "failed")

#: Positions of guesses that are told apart: no column drafts more, and a record may say anything.
MOST_POSITIONS = 64


@dataclass(slots=True)
class Moment:
    """An event that showed text or committed tokens: when it ended on the column's own clock, and
    the [origin, text] pairs that it showed. It is, or stands behind, step `number` (0: none yet).
    `step`, with what was proposed in it, is None of given text, and of text that was held back.
    """

    clock: float
    spans: list[list[str]]
    number: int
    step: Step | None = None
    proposed: Proposed | None = None

    @property
    def tokens(self) -> int:
        """How many it committed, also where their ids are not known."""
        return len(self.step.origins) if self.step else 0


@dataclass
class Score:
    """One column so far. Times are seconds of the column's own clock; counts are of this run,
    unless said otherwise.

    `add` folds in the column's next event in constant time; everything else only reads. What a
    lane does not know (a remote server's token ids, gaps, rows, parts) stays empty or 0.
    """

    state: State = "queued"
    reason: str = ""  # why a column that is done ended
    message: str = ""  # why a column failed, a sentence
    expected: str = ""  # what the grammar still wanted when the text was cut
    judged: Judged | None = None  # how a text was judged that its grammar let end

    clock: str = "own"  # whose time the seconds are of: the column's own, "server" or "network"
    started: Started = field(default_factory=lambda: Started(0, 0))  # what runs where, and how

    prompt_tokens: int = 0
    prefilled: int = 0  # tokens of the prompt that are computed, or need not be
    reused: int = 0  # first tokens of the prompt that its cache held from the start
    fed: bool = False  # it is a program's, with given text
    slots: dict[str, list[str]] = field(default_factory=dict)  # a program's values by name

    tokens: list[int] = field(default_factory=list)  # ids of the whole answer; []: unknown
    gaps: list[float] = field(default_factory=list)  # between the two best scores; inf: unknown
    length: int = 0  # tokens of the answer, also where their ids are not known
    moments: list[Moment] = field(default_factory=list)  # all that was shown, in order
    repeats: list[Repeated] = field(default_factory=list)  # further runs of the whole answer

    seconds: float = 0.0
    ttft: float = 0.0
    masked: bool = False  # a grammar allowed some tokens alone

    steps: int = 0
    rows: int = 0  # token rows that the target computed
    forced: int = 0  # tokens that the grammar left no choice about
    drafted: int = 0  # tokens proposed by a drafter, never those that a grammar forces
    accepted: int = 0  # of these, those that the target confirmed

    costs: PassCosts = UNKNOWN_COSTS
    #: What the drafter decided last.
    decision: Decided = field(default_factory=lambda: Decided(0, {}, "", []))

    def add(self, event: Event) -> None:  # noqa: C901, PLR0912 (one case an event)
        if isinstance(event, Step):
            self._step(event)
            return
        self.seconds += getattr(event, "seconds", 0.0)
        if spans := getattr(event, "spans", []):
            self.moments.append(Moment(self.seconds, spans, self.steps))
        match event:
            case Started():
                self.state, self.started = "prefill", event
                self.prompt_tokens = event.prompt_tokens
            case Prepared():
                self.reused = event.reused
                self.prefilled = min(event.reused, self.prompt_tokens)
            case CostsKnown():
                self.costs = PassCosts(tuple(event.widths), tuple(event.passes))
            case Prefilled():
                self.prefilled = max(self.prefilled, min(event.done, self.prompt_tokens))
            case Proposed():
                self.masked |= bool(event.allowed)
                if self.moments:
                    self.moments[-1].proposed = event
            case Decided():
                self.decision = event
            case Fed():
                self.fed = True
            case Filled():
                self.slots.setdefault(event.name, []).append(event.value)
            case Judged():
                self.judged = event
            case Served():
                self.clock = event.clock
                self.prompt_tokens = event.prompt_tokens or self.prompt_tokens
            case Repeated():
                self.repeats.append(event)
            case Finished():
                self.state = "stopped" if event.reason == "stopped" else "done"
                self.reason, self.expected = event.reason, event.expected
            case Failed():
                self.state, self.message = "failed", event.message

    def _step(self, step: Step) -> None:
        count = len(step.origins)  # of the tokens, also where their ids are not known
        self.seconds += step.seconds["total"]
        self.tokens += step.tokens
        self.gaps += [*step.gaps, *[inf] * (count - len(step.gaps))]
        self.length += count
        if not self.steps:
            self.ttft = self.seconds
        self.state, self.prefilled = "decoding", self.prompt_tokens
        self.steps += 1
        self.moments.append(Moment(self.seconds, step.spans, self.steps, step))
        self.rows += step.rows
        self.forced += step.origins.count("forced")
        if step.drafted:
            self.drafted += step.drafted
            self.accepted += step.accepted

    def passes_of(self, step: Step) -> int:
        """Passes of the target in a step behind the first one; 0: unknown."""
        if step.rows:
            return 1
        # Over a network nobody knows how many came together.
        return 0 if self.clock == "network" else len(step.origins) - step.accepted

    @property
    def spans(self) -> list[list[str]]:
        """All [origin, text] pairs, in order."""
        return [span for moment in self.moments for span in moment.spans]

    @property
    def text(self) -> str:
        return "".join(piece for _, piece in self.spans)

    @property
    def values(self) -> dict[str, str | list[str]]:
        """A program's values by name; a list where a slot was filled more than once."""
        return {k: v if len(v) > 1 else v[0] for k, v in self.slots.items()}

    @property
    def start(self) -> float:
        """When the time begins of which its speed is: with its first token, or its program."""
        return 0.0 if self.fed else self.ttft

    @property
    def mean_rows(self) -> float:
        """Rows of a pass behind the first one on average; 0 while there are none."""
        rows = [moment.step.rows for moment in self.moments if moment.step and moment.number > 1]
        return sum(rows) / max(sum(map(bool, rows)), 1)

    @property
    def acceptance(self) -> float:
        """Accepted share of the drafted tokens."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def positions(self) -> list[tuple[int, int]]:
        """At places 1, 2, 3, ... behind the text, forced tokens not counted, how many guesses were
        made, and how many of them were accepted; of a tree, those of all its paths. []: unknown.
        """
        offered, accepted = Counter[int](), Counter[int]()
        for moment in self.moments:
            step, proposed = moment.step, moment.proposed
            if step and step.drafted:  # 0: nothing was guessed, or a library does not say how much
                chain = list(range(1, min(step.drafted, MOST_POSITIONS) + 1))
                places = proposed.places if proposed else chain
                forced = max(len(places) - step.drafted, 0)  # a chain in front of the guesses
                offered.update(place - forced for place in places[forced:])
                accepted.update(chain[: step.accepted])
        longest = min(max(offered, default=0), MOST_POSITIONS)
        return [(offered[i], accepted[i]) for i in range(1, longest + 1)]


class Scoreboard:
    """Fold a race's events in with `add`; read `scores`, aligned with `columns`."""

    def __init__(self, columns: Sequence[Column], events: Iterable[Event] = ()) -> None:
        self.columns = tuple(columns)
        self.scores = [Score() for _ in self.columns]
        self.preparing = ""
        self.conditions: Conditions | None = None
        for event in events:
            self.add(event)

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
    def others(self) -> float:
        """The share of the machine that others used; 0: unknown."""
        return self.conditions.others if self.conditions else 0.0

    @property
    def ended(self) -> bool:
        return all(score.state in ENDED for score in self.scores)

    @cached_property
    def names(self) -> list[str]:
        """What to call each column so that no other one of this race is meant."""
        return names_of(self.columns)

    @property
    def baseline_index(self) -> int | None:
        """The baseline, of the columns that have not failed."""
        failed = [i for i, score in enumerate(self.scores) if score.state == "failed"]
        return baseline_of(self.columns, failed)

    @property
    def baseline(self) -> Score:
        """The score of the column that others are compared with; an empty one if there is none."""
        index = self.baseline_index
        return Score() if index is None else self.scores[index]
