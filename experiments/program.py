"""The known comparison: a fixed text with a short slot, ten times over.

Guidance showed it on an A100 with Mistral-7B: 3.9 s with the cache kept between slots, 4.8 s
without, 20.7 s as one generation.
"""

from dataclasses import dataclass, replace
from statistics import median

from backend.racing.race import Race
from backend.strategies.column import parse_column
from experiments.experiment import Experiment, Setup
from experiments.runs import ratios_of, rounds, solo_runs

#: Twelve sentences, fed ten times, each time followed by four tokens of the model's own.
PASSAGE = (
    "The harbour of Lund opens before sunrise. Three boats leave at five for the cod banks. "
    "The largest of them is called Marta. She carries four people and a dog. "
    "The other two boats are older and slower. Their nets are mended every Friday. "
    "At noon the first catch is weighed on the quay. A clerk writes the weight into a green book. "
    "The fish is sold to two shops and one school. What is left goes to the gulls. "
    "In the evening the crews meet at the lamp. One of them says a single word about the day: "
)
TEXT = "{{repeat 10}}" + PASSAGE + '{{gen "word" max_tokens=4}}\n{{end}}'
COLUMNS = ("kv", "no_reuse", "single")


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """Medians over the rounds: seconds in all, forward passes with a sampled token, rows computed.

    ratio: time over that of KV reuse, of the same round, with its 95 % interval, and its lowest and
    highest value in `spread`.
    """

    column: str
    seconds: float
    ratio: float
    interval: tuple[float, float] | None
    spread: tuple[float, float]
    steps: int
    rows: int
    generated: int
    fed: int


def program(setup: Setup) -> list[ProgramResult]:
    """Run the program with reuse, without, and as one generation."""
    columns = tuple(map(parse_column, COLUMNS))
    race = Race(replace(setup.request, prompt=TEXT, chat=False), columns, setup.target)
    runs = rounds(
        solo_runs(len(columns), setup.models), [race] * setup.rounds, setup.say_round, warm_up=1
    )
    results: list[ProgramResult] = []
    for index, column in enumerate(columns):
        scores = [run[index] for run in runs]
        ratios = ratios_of([run[index].seconds / run[0].seconds for run in runs])
        results.append(
            ProgramResult(
                column.label,
                median(score.seconds for score in scores),
                ratios.median,
                ratios.interval,
                ratios.spread,
                scores[0].steps,
                scores[0].rows,
                len(scores[0].tokens),
                scores[0].fed,
            )
        )
    return results


PROGRAM = Experiment(
    "program", "a program of ten slots: cache kept, cache forgotten, one generation", program
)
