"""What a JSON Schema costs, or saves: each shipped one against unconstrained KV reuse.

Where structure is rigid, forced tokens make a pass write more than one token; masks computed
behind the forward pass cost next to nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from backend.bench.solo import run_solo
from backend.grammar.sources import examples, shipped
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.metrics import Score
from backend.strategies.registry import STRATEGIES, parse_column
from backend.types import ModelSpec, Request

#: Drafting on top of the grammar.
COLUMNS = ("grammar", "lookup", "lookahead", "speculative")


@dataclass(frozen=True, slots=True)
class Row:
    """One column under one schema, medians over the rounds.

    time_ratio: time per token over that of unconstrained KV reuse, of the same round, with its
    lowest and highest value. exposed: share of a step that waits for masks. forced: share of the
    tokens. agreed: share of proposed tokens that were accepted. equal: the text is that of the
    grammar without drafting.
    """

    column: str
    schema: str
    tokens: int
    time_ratio: float
    spread: tuple[float, float]
    tokens_per_forward: float
    mask_ms: float
    exposed: float
    forced: float
    agreed: float
    equal: bool


def structure_experiment(
    request: Request,
    target: ModelSpec,
    engines: LoadedModels,
    say: Callable[[str], None],
    rounds: int,
    names: Sequence[str] = (),
) -> list[Row]:
    """Every shipped JSON Schema (or `names`) with its own prompt; the order rotates."""
    chosen = names or [name for name, source in shipped().items() if source.kind == "json_schema"]
    rows: list[Row] = []
    for name in chosen:
        say(f"{name}: {rounds} rounds")
        runs = _runs(name, request, target, engines, rounds)
        plain = [run[1] for run in runs]
        for index, column in enumerate(COLUMNS, 1):
            pairs = [(run[0], run[index]) for run in runs]
            equal = all(a.tokens == run[index].tokens for a, run in zip(plain, runs, strict=True))
            rows.append(_row(STRATEGIES[column].title, name, pairs, equal=equal))
    return rows


def _runs(
    name: str, request: Request, target: ModelSpec, engines: LoadedModels, rounds: int
) -> list[list[Score]]:
    """Scores by round and column, KV reuse first."""
    columns = (STRATEGIES["kv"], *(parse_column(f"{column}:grammar={name}") for column in COLUMNS))
    race = Race(replace(request, prompt=examples(name).prompt), columns, target)
    for index in range(len(columns)):
        run_solo(race, index, engines)  # warm-up, discarded
    runs: list[list[Score]] = []
    for number in range(rounds):
        order = [(number + i) % len(columns) for i in range(len(columns))]
        scores = {index: run_solo(race, index, engines) for index in order}
        runs.append([scores[index] for index in range(len(columns))])
    return runs


def _row(column: str, name: str, pairs: Sequence[tuple[Score, Score]], *, equal: bool) -> Row:
    ratios = [score.tpot / base.tpot for base, score in pairs]
    last = pairs[-1][1]
    return Row(
        column,
        name,
        len(last.tokens),
        median(ratios),
        (min(ratios), max(ratios)),
        last.tokens_per_forward,
        median(median(score.masks) for _, score in pairs) * 1e3,
        median(score.parts["mask"] / sum(score.parts.values()) for _, score in pairs),
        last.forced / len(last.tokens),
        last.acceptance,
        equal,
    )
