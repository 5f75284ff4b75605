"""What a JSON Schema costs, or saves: each shipped one against unconstrained KV reuse.

Where structure is rigid, forced tokens make a pass write more than one token; masks computed
behind the forward pass cost next to nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Annotated

from backend.grammar.sources import examples, shipped
from backend.racing.race import Race
from backend.results.figures import figure
from backend.results.metrics import Score
from backend.strategies.column import parse_column
from backend.strategies.registry import BASELINE
from experiments.experiment import Experiment, Setup
from experiments.runs import median_figure, ratios_of, rounds, solo_runs

#: The grammar alone, and drafting on top of it.
COLUMNS = ("grammar", "lookup", "lookahead", "speculative")


@dataclass(frozen=True, slots=True)
class SchemaResult:
    """One column under one schema, medians over the rounds.

    time_ratio: decode time over that of unconstrained KV reuse, of the same round and for as many
    tokens, with its 95 % interval, and its lowest and highest value in `spread`. exposed: share of
    a step that waits for masks. forced: share of the tokens. agreed: share of drafted tokens that
    were accepted. equal: the text is that of the grammar without drafting.
    """

    column: str
    schema: str
    tokens: Annotated[int, figure("tokens")]
    time_ratio: float
    interval: tuple[float, float] | None
    spread: tuple[float, float]
    tokens_per_forward: Annotated[float, figure("tokens_per_forward")]
    mask_ms: Annotated[float, figure("mask_compute")]
    exposed: float
    forced: float
    agreed: Annotated[float, figure("accepted")]
    equal: bool


def structure(setup: Setup) -> list[SchemaResult]:
    """Every shipped JSON Schema with its own prompt."""
    names = [name for name, source in shipped().items() if source.kind == "json_schema"]
    return [result for name in names for result in measure_schema(name, setup)]


def measure_schema(name: str, setup: Setup) -> list[SchemaResult]:
    """One shipped schema in every column."""
    bound = [parse_column(f"{column}:grammar={name}") for column in COLUMNS]
    columns = (parse_column(BASELINE), *bound)
    race = Race(replace(setup.request, prompt=examples(name).prompt), columns, setup.target)
    setup.say(name)
    runs = rounds(
        solo_runs(len(columns), setup.models),
        [race] * setup.rounds,
        setup.say_round,
        warm_up=len(columns),
    )
    results: list[SchemaResult] = []
    for index, column in enumerate(COLUMNS, 1):
        pairs = [(run[0], run[index]) for run in runs]
        equal = all(run[index].tokens == run[1].tokens for run in runs)
        results.append(_result(parse_column(column).title, name, pairs, equal=equal))
    return results


def _result(
    column: str, name: str, pairs: Sequence[tuple[Score, Score]], *, equal: bool
) -> SchemaResult:
    ratios = ratios_of([1 / ratio for base, score in pairs if (ratio := score.speedup_over(base))])
    last = pairs[-1][1]
    return SchemaResult(
        column,
        name,
        len(last.tokens),
        ratios.median,
        ratios.interval,
        ratios.spread,
        last.tokens_per_forward,
        median_figure("mask_compute", pairs),
        median(score.parts["mask"] / sum(score.parts.values()) for _, score in pairs),
        last.forced / len(last.tokens),
        last.acceptance,
        equal,
    )


STRUCTURE = Experiment(
    "structure", "every shipped JSON Schema against KV reuse without a grammar", structure
)
