"""Folds one column's events into the figures that people compare."""

from collections import Counter
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from backend.costs.pass_costs import UNKNOWN_COSTS, PassCosts
from backend.events import (
    CostsKnown,
    Event,
    Failed,
    Fed,
    Filled,
    Finished,
    Prefilled,
    Prepared,
    Resumed,
    Saved,
    Shifted,
    Started,
    Step,
)

State = Literal["queued", "prefill", "decoding", "done", "stopped", "failed"]


@dataclass
class Score:
    """One column so far. All times are seconds of the column's own clock.

    `add` folds in the column's next event; everything else only reads.
    """

    state: State = "queued"
    model: str = ""
    prompt_tokens: int = 0
    prefilled: int = 0
    reused: int = 0  # first tokens of prompt and answer that an earlier cache held
    earlier: int = 0  # tokens of the answer that an earlier run had written
    fed: int = 0  # tokens of a program's fixed text
    slots: dict[str, list[str]] = field(default_factory=dict)  # a program's values by name
    shifts: list[Shifted] = field(default_factory=list)
    snapshot: str = ""
    tokens: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    spans: list[list[str]] = field(default_factory=list)
    reason: str = ""
    message: str = ""
    seconds: float = 0.0
    ttft: float = 0.0
    first_block: int = 0  # tokens of the first step: one, or more where a grammar forces some
    steps: int = 0
    rows: int = 0
    drafted: int = 0
    accepted: int = 0
    rounds: Counter[int] = field(default_factory=Counter)  # accepted tokens -> rounds with a draft
    parts: dict[str, float] = field(default_factory=dict)  # seconds of draft, mask, forward, rest
    compiled: float = 0.0  # seconds that the grammar took to compile, and its first mask
    masks: list[float] = field(default_factory=list)  # seconds of each mask, hidden or not
    forced: int = 0  # tokens that the grammar left no choice about
    expected: str = ""  # what the grammar still wanted when the text was cut
    costs: PassCosts = (
        UNKNOWN_COSTS  # what passes are known to cost; UNKNOWN_COSTS: nothing is known
    )
    draft_cost: float = 0.0  # seconds of a call of the draft
    calls: int = 0  # of the draft
    widths: Counter[int] = field(default_factory=Counter)  # rows of the passes after the first
    last_rows: int = 1  # of the last pass
    expected_seconds: float = 0.0  # that those passes should take, drafting included
    plain_seconds: float = 0.0  # that plain decoding should take for as many tokens
    depths: Counter[tuple[int, int]] = field(default_factory=Counter)  # drafted and accepted

    def add(self, event: Event) -> None:
        # Whatever takes time of the column's clock says so; a step says more.
        if not isinstance(event, Step):
            self.seconds += getattr(event, "seconds", 0.0)
        self.spans += getattr(event, "spans", [])
        match event:
            case Started():
                self.state = "prefill"
                self.model, self.prompt_tokens = event.model, event.prompt_tokens
            case Prepared():
                self.reused, self.compiled = event.reused, event.compiled
                self.prefilled = min(event.reused, self.prompt_tokens)
            case CostsKnown():
                each, row = event.context_slope
                widths, passes = tuple(event.widths), tuple(event.passes)
                self.costs = PassCosts(widths, passes, event.width_change, (each, row))
                self.draft_cost = event.draft
            case Prefilled():
                self.prefilled = max(self.prefilled, min(event.done, self.prompt_tokens))
            case Step():
                self._step(event)
            case Finished():
                self.state = "stopped" if event.reason == "stopped" else "done"
                self.reason, self.expected = event.reason, event.expected
            case Failed():
                self.state, self.message = "failed", event.message
            case _:
                self._rarely(event)

    def _rarely(self, event: Event) -> None:
        """Events of continued answers, programs and full contexts."""
        match event:
            case Resumed():
                self.earlier = len(event.tokens)
                self.tokens += event.tokens
                self.gaps += [inf] * len(event.tokens)
                self.shifts += [
                    Shifted(event.column, at, sink, dropped, "", 0.0)
                    for at, sink, dropped in event.shifts
                ]
            case Fed():
                self.fed += event.tokens
            case Filled():
                self.slots.setdefault(event.name, []).append(event.value)
            case Shifted():
                self.shifts.append(event)
            case Saved():
                self.snapshot = event.snapshot
            case _:
                pass

    def _step(self, step: Step) -> None:
        self.seconds += step.seconds["total"]
        if not self.steps:
            self.ttft, self.first_block = self.seconds, len(step.tokens)
        else:
            self.widths[step.rows] += 1
            self.calls += step.calls
            self._expect(step)
        self.state, self.prefilled = "decoding", self.prompt_tokens
        self.last_rows = step.rows if self.steps else 1
        self.tokens += step.tokens
        self.gaps += step.gaps
        self.steps += 1
        self.rows += step.rows
        self.drafted += step.drafted
        self.accepted += step.accepted
        self.masks += step.masks
        self.forced += step.origins.count("forced")
        if step.drafted:
            self.rounds[step.accepted] += 1
            self.depths[step.drafted, step.accepted] += 1
        for part in ("draft", "mask", "forward", "rest"):
            self.parts[part] = self.parts.get(part, 0.0) + step.seconds[part]

    def _expect(self, step: Step) -> None:
        """What the step should have taken, and a plain one in its place for each of its tokens."""
        context = self.prompt_tokens + len(self.tokens)
        changed = self.costs.width_change * (step.rows != self.last_rows)
        own = self.costs(step.rows, context) + changed + step.calls * self.draft_cost
        self.expected_seconds += own
        self.plain_seconds += len(step.tokens) * self.costs(1, context)

    @property
    def text(self) -> str:
        return "".join(piece for _, piece in self.spans)

    @property
    def values(self) -> dict[str, str | list[str]]:
        """A program's values by name; a list where a slot was filled more than once."""
        return {k: v if len(v) > 1 else v[0] for k, v in self.slots.items()}

    @property
    def written(self) -> int:
        """Tokens of this run."""
        return len(self.tokens) - self.earlier

    @property
    def decode_seconds(self) -> float:
        """Time after the first token."""
        return self.seconds - self.ttft

    @property
    def tpot(self) -> float:
        """Seconds per output token after those of the first step; 0 while there are none."""
        later = self.written - self.first_block
        return self.decode_seconds / later if later > 0 else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Decode speed: 1 / TPOT."""
        return 1 / self.tpot if self.tpot else 0.0

    @property
    def tokens_per_forward(self) -> float:
        """Committed tokens per target forward pass, prefill not counted; 0 while there are none."""
        return (self.written - self.first_block) / (self.steps - 1) if self.steps > 1 else 0.0

    @property
    def predicted(self) -> float:
        """The speed-up over plain decoding that the measured costs of passes promise for the rows
        and draft calls there were; 0 while unknown.
        """
        known = self.costs.known and self.expected_seconds > 0
        return self.plain_seconds / self.expected_seconds if known else 0.0

    @property
    def acceptance(self) -> float:
        """Accepted share of the drafted tokens."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def speedup_over(self, baseline: "Score") -> float:
        """Ratio of the baseline's TPOT to this one's; 0 while either is unknown.

        Of programs, whose columns do not write equally much, the ratio of the whole times, once
        both have ended.
        """
        if self.fed or baseline.fed:
            ended = self.state == baseline.state == "done" and self.seconds
            return baseline.seconds / self.seconds if ended else 0.0
        return baseline.tpot / self.tpot if self.tpot else 0.0
