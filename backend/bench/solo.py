"""Measurements to quote: solo, warmed up, order rotated, medians of per-prompt ratios.

Every experiment compares within one run, because absolute times drift on shared machines and
ratios do not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from backend.bench.prompts import Prompt
from backend.errors import DerbyError
from backend.racing.models import LoadedModels
from backend.racing.race import Race, run_race
from backend.results.metrics import Score
from backend.results.scoreboard import Scoreboard
from backend.strategies.registry import BASELINE, STRATEGIES, Strategy
from backend.types import ModelSpec, Request

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Row:
    """One column's medians over all prompts. Times in milliseconds.

    speedup: median of per-prompt ratios of decode time per token, KV reuse over this column, with
    its lowest and highest value in `spread`. end_to_end: the same for the whole answer's time per
    token, prefill included. overhead: a step's time outside draft, mask and forward. equal:
    prompts whose text was that of KV reuse, of those compared.
    """

    column: str
    category: str
    prompts: int
    ttft: float
    tpot: float
    speedup: float
    spread: tuple[float, float]
    end_to_end: float
    tokens_per_forward: float
    acceptance: float
    overhead: float
    mask: float
    equal: int


def run_solo(race: Race, index: int, engines: LoadedModels) -> Score:
    """Run one of the race's columns alone. Raises DerbyError if it fails."""
    board = Scoreboard([race.columns[index]])
    alone = Race(race.request, (race.columns[index],), race.target)
    run_race(alone, engines, board.add, lambda: False)
    return _finished(board, 0)


def run_together(race: Race, engines: LoadedModels) -> list[Score]:
    """Run all columns interleaved. Raises DerbyError if one fails."""
    board = Scoreboard(race.columns)
    run_race(race, engines, board.add, lambda: False)
    return [_finished(board, index) for index in range(len(race.columns))]


def _finished(board: Scoreboard, index: int) -> Score:
    score = board.scores[index]
    if score.state != "done":
        raise DerbyError(f"{board.columns[index].label} did not finish: {score.message}")
    return score


def with_baseline(columns: Sequence[Strategy]) -> tuple[Strategy, ...]:
    """The columns, KV reuse first."""
    others = tuple(column for column in columns if column.name != BASELINE)
    return (STRATEGIES[BASELINE], *others)


def solo(
    prompts: Sequence[Prompt],
    columns: Sequence[Strategy],
    request: Request,
    target: ModelSpec,
    engines: LoadedModels,
    say: Say,
) -> list[Row]:
    """Every column alone on every prompt; the order rotates from prompt to prompt."""
    races = [_race(prompt, columns, request, target) for prompt in prompts]
    names = with_baseline(columns)
    for index in range(len(names)):
        run_solo(races[0], index, engines)  # warm-up, discarded
    runs: list[list[Score]] = []
    for number, race in enumerate(races):
        say(f"prompt {number + 1} of {len(races)} ({prompts[number].category})")
        order = [(number + i) % len(names) for i in range(len(names))]
        scores = {index: run_solo(race, index, engines) for index in order}
        runs.append([scores[index] for index in range(len(names))])
    categories = ["all", *dict.fromkeys(prompt.category for prompt in prompts)]
    rows: list[Row] = []
    for category in categories if len(categories) > 2 else ["all"]:
        chosen = [
            scores
            for prompt, scores in zip(prompts, runs, strict=True)
            if category in ("all", prompt.category)
        ]
        rows += [
            _row(column, category, [(scores[0], scores[index]) for scores in chosen])
            for index, column in enumerate(names)
        ]
    return rows


def _race(prompt: Prompt, columns: Sequence[Strategy], request: Request, target: ModelSpec) -> Race:
    asked = Request(
        prompt.text, request.max_new_tokens, request.sampling, request.chat, request.stop
    )
    return Race(asked, with_baseline(columns), target)


def _row(column: Strategy, category: str, pairs: list[tuple[Score, Score]]) -> Row:
    """Medians over (baseline, column) pairs; prompts answered by a single step say nothing."""
    ratios = [score.speedup_over(base) for base, score in pairs if base.tpot and score.tpot]
    scores = [score for _, score in pairs]
    return Row(
        column.label,
        category,
        len(pairs),
        median(s.ttft for s in scores) * 1e3,
        median(s.tpot for s in scores) * 1e3,
        median(ratios) if ratios else 0.0,
        (min(ratios, default=0.0), max(ratios, default=0.0)),
        median((b.seconds / len(b.tokens)) / (s.seconds / len(s.tokens)) for b, s in pairs),
        median(s.tokens_per_forward for s in scores),
        sum(s.accepted for s in scores) / max(sum(s.drafted for s in scores), 1),
        median(s.parts["rest"] / s.steps for s in scores) * 1e3,
        median(s.parts["mask"] / s.steps for s in scores) * 1e3,
        sum(s.tokens == b.tokens[: column.limit or len(b.tokens)] for b, s in pairs),
    )


@dataclass(frozen=True, slots=True)
class Interleaving:
    """A column's own-clock time per token, interleaved over solo: 1 means an undisturbed clock."""

    column: str
    tpot: float
    ttft: float
    spread: tuple[float, float]


def interleaving(
    prompts: Sequence[Prompt],
    columns: Sequence[Strategy],
    request: Request,
    target: ModelSpec,
    engines: LoadedModels,
    say: Say,
) -> list[Interleaving]:
    """Compare interleaved with solo figures, alternating which comes first; medians of ratios."""
    names = with_baseline(columns)
    ratios: list[list[tuple[float, float]]] = [[] for _ in names]
    run_together(_race(prompts[0], columns, request, target), engines)  # warm-up, discarded
    for number, prompt in enumerate(prompts):
        say(f"prompt {number + 1} of {len(prompts)} ({prompt.category})")
        race = _race(prompt, columns, request, target)
        together = run_together(race, engines) if number % 2 else []
        alone = [run_solo(race, index, engines) for index in range(len(names))]
        together = together or run_together(race, engines)
        for found, ours, own in zip(ratios, together, alone, strict=True):
            if own.tpot:
                found.append((ours.tpot / own.tpot, ours.ttft / own.ttft))
    return [
        Interleaving(
            column.label,
            median(tpot for tpot, _ in found),
            median(ttft for _, ttft in found),
            (min(tpot for tpot, _ in found), max(tpot for tpot, _ in found)),
        )
        for column, found in zip(names, ratios, strict=True)
        if found
    ]
