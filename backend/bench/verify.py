"""The equality matrix: every lossless column writes what KV reuse writes, on the real engines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from backend.bench.prompts import PROMPTS, Prompt
from backend.bench.runner import raced
from backend.errors import DerbyError
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.result import result_of
from backend.results.sentences import outcome
from backend.strategies.column import Column, parse_column
from backend.strategies.registry import BASELINE, strategies
from backend.types import MAX_COLUMNS, ModelSpec, Request, Sampling

USUAL = Sampling(0.0), Sampling(0.7), Sampling(1.0)
PENALIZED = Sampling(repetition_penalty=1.2), Sampling(1.0, min_p=0.1, repetition_penalty=1.2)

#: In which equality is a promise.
TARGETS = (ModelSpec(), ModelSpec(precision="int4-exact"), ModelSpec(engine="torch"))


@dataclass(frozen=True, slots=True)
class Case:
    """One request on one model; `category` is its prompt's."""

    target: ModelSpec
    category: str
    request: Request


@dataclass(frozen=True, slots=True)
class Verified:
    """`tokens` of KV reuse, and for each column's name what is wrong with its text; "": equal."""

    case: Case
    tokens: int
    differences: dict[str, str]

    @property
    def equal(self) -> bool:
        return not any(self.differences.values())


def verified_columns(names: Sequence[str] = ()) -> tuple[Column, ...]:
    """KV reuse and the columns of these names, or whatever each strategy wants to have checked."""
    texts = names or [
        f"{name}:{settings}" if settings else name
        for name, strategy in strategies().items()
        for settings in strategy.verified
    ]
    return tuple(dict.fromkeys(map(parse_column, (BASELINE, *texts))))


def cases(
    usual: Request,
    targets: tuple[ModelSpec, ...] = TARGETS,
    prompts: tuple[Prompt, ...] = PROMPTS,
    samplings: tuple[Sampling, ...] = USUAL,
) -> tuple[Case, ...]:
    """Every combination, each with a seed of its own; `usual` holds all else."""
    return tuple(
        Case(
            target,
            prompt.category,
            replace(usual, prompt=prompt.text, sampling=replace(sampling, seed=seed)),
        )
        for seed, (target, prompt, sampling) in enumerate(product(targets, prompts, samplings))
    )


def verify(
    chosen: Sequence[Case], models: LoadedModels, columns: Sequence[Column]
) -> Iterator[Verified]:
    """Run the cases one by one: all `columns` of a case, KV reuse first among them, in as many
    races as they take. Who promises a distribution writes a text of its own, but at temperature 0.

    Raises DerbyError if there is nothing to compare with, for KV reuse fails.
    """
    for case in chosen:
        temperature = case.request.sampling.temperature
        base, *others = (column for column in columns if column.lossless(temperature))
        tokens, differences = 0, dict[str, str]()
        for start in range(0, len(others), MAX_COLUMNS - 1):
            lineup = (base, *others[start : start + MAX_COLUMNS - 1])
            board = raced(Race(case.request, lineup, case.target), models)
            if board.scores[0].state == "failed":
                raise DerbyError(board.scores[0].message)
            result, tokens = result_of(board), board.scores[0].length
            for column, row in zip(lineup, result.rows, strict=True):
                same = row.state == "done" and result.wrote_baseline_text(row)
                differences[str(column)] = "" if same else outcome(board, row) or "another text"
        yield Verified(case, tokens, differences)
