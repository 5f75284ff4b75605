"""What a benchmark measures: every prompt, each column alone, in a fixed order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256

from backend.bench.prompts import Prompt
from backend.racing.race import Race
from backend.records.record import this_machine, versions
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import Column, baseline_of, names_of, parse_column
from backend.strategies.registry import usual_columns
from backend.types import ModelSpec, Request


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt. `number` is its place in the plan, from 0; `prompt` is the same number for the
    same text. `race` is that of the first turn, `later` what the user says in the others;
    `baseline` is the plan's.
    """

    number: int
    race: Race
    baseline: int
    category: str
    prompt: int
    later: tuple[str, ...] = ()

    def next_race(self, boards: Sequence[Scoreboard]) -> Race | None:
        """The race of the turn behind those that came to these boards; None: that was the last.

        Every column gets the same prompt: the chat so far, with the baseline's answers. Each reads
        it anew. Without the chat template, or an answer of the baseline, there is no second turn.
        """
        if not boards:
            return self.race
        request, last = self.race.request, boards[-1]
        answered = request.chat and last.scores[self.baseline].state == "done"
        if not answered or len(boards) > len(self.later):
            return None
        *earlier, prompt = (request.prompt, *self.later)[: len(boards) + 1]
        answers = [board.scores[self.baseline].text for board in boards]
        chat = tuple(zip(earlier, answers, strict=True))
        return replace(self.race, request=replace(request, prompt=prompt, earlier=chat))


@dataclass(frozen=True)
class Plan:
    """The columns on each of the prompts, on one model.

    `request` holds the limit and the sampling; its prompt is replaced. Columns of which none is
    plain get one of the model's usual ones for a baseline. `anywhere`: what was measured on other
    machines counts as well.
    """

    prompts: Sequence[Prompt]
    columns: tuple[Column, ...]
    request: Request
    target: ModelSpec
    anywhere: bool = False

    def __post_init__(self) -> None:
        if baseline_of(self.columns) is None:
            usual = map(parse_column, usual_columns(self.target.name))
            baseline = next(column for column in usual if column.plain)
            object.__setattr__(self, "columns", (baseline, *self.columns))

    @property
    def baseline(self) -> int:
        """The column that the others are compared with."""
        return baseline_of(self.columns) or 0

    @property
    def names(self) -> list[str]:
        """What the columns are called."""
        return names_of(self.columns)

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """In each, the columns run alone, one after another. Who begins rotates."""
        numbers: dict[tuple[str, ...], int] = {}
        return tuple(
            Job(
                number,
                Race(
                    replace(self.request, prompt=prompt.text),
                    self.columns,
                    self.target,
                    alone_from=number % len(self.columns),
                ),
                self.baseline,
                prompt.category,
                numbers.setdefault((prompt.text, *prompt.later), len(numbers)),
                prompt.later,
            )
            for number, prompt in enumerate(self.prompts)
        )

    @cached_property
    def identity(self) -> str:
        """The same for the same prompts, columns, model, settings, versions and machine."""
        settings = self.columns, replace(self.request, prompt="-"), self.target
        place = () if self.anywhere else this_machine()
        text = repr((settings, tuple(self.prompts), versions(), place))
        return sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]

    def __str__(self) -> str:
        """What the results hold for, in a few words."""
        length = f"{'exactly ' * self.request.ignore_eos}{self.request.max_new_tokens} new tokens"
        base = self.columns[self.baseline]
        where = base.target(self.target) if base.strategy.loads else self.names[self.baseline]
        return f"{where}, {length}, {self.request.sampling}"
