"""The equality matrix: every lossless column writes what KV reuse writes, on the real engines."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from backend.bench.prompts import PROMPTS, Prompt
from backend.racing.models import LoadedModels
from backend.racing.race import Race, run_race
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import verdict
from backend.strategies.registry import parse_column
from backend.types import ModelSpec, Request, Sampling

COLUMNS = tuple(
    parse_column(text)
    for text in (
        "kv",
        "stateless:limit=24",
        "speculative",
        *(f"speculative:draft=trained,k={k}" for k in (1, 4)),
        *(f"speculative:draft=int4,k={k}" for k in (3, 8)),
        "lookup",
        "lookup:k=10,ngram=4,branches=4",
        "lookahead:window=5,level=3,guesses=5",
        "lookahead:window=7,level=4,guesses=7,seeded=false",
        "lookahead:window=15,level=5,guesses=15",
    )
)

TARGETS = (ModelSpec(), ModelSpec(engine="torch"))


@dataclass(frozen=True, slots=True)
class Case:
    target: ModelSpec
    prompt: Prompt
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class Result:
    """`verdicts`: for each column its name and the comparison's sentence; `equal` sums them up."""

    case: Case
    tokens: int
    equal: bool
    verdicts: tuple[tuple[str, str], ...]


def cases(
    targets: tuple[ModelSpec, ...] = TARGETS,
    prompts: tuple[Prompt, ...] = PROMPTS,
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0),
    seeds: tuple[int, ...] = (0, 1, 2),
) -> tuple[Case, ...]:
    """Every combination; greedy needs one seed only."""
    return tuple(
        Case(target, prompt, temperature, seed)
        for target, prompt, temperature, seed in product(targets, prompts, temperatures, seeds)
        if temperature > 0 or seed == seeds[0]
    )


def verify(
    chosen: tuple[Case, ...], engines: LoadedModels, max_new_tokens: int = 96
) -> Iterator[Result]:
    """Run the cases one by one, all columns of a case in one race."""
    for case in chosen:
        request = Request(
            case.prompt.text, max_new_tokens, Sampling(case.temperature, seed=case.seed)
        )
        board = Scoreboard(COLUMNS)
        run_race(Race(request, COLUMNS, case.target), engines, board.add, lambda: False)
        yield _judge(case, board)


def _judge(case: Case, board: Scoreboard) -> Result:
    base = board.scores[0].tokens
    verdicts: list[tuple[str, str]] = []
    equal = True
    for index, (strategy, score) in enumerate(zip(board.columns, board.scores, strict=True)):
        expected = base[: strategy.limit or len(base)]
        same = score.state == "done" and score.tokens == expected
        equal &= same
        verdicts.append(
            (strategy.label, "equal" if same else score.message or verdict(board, index))
        )
    return Result(case, len(base), equal, tuple(verdicts))
