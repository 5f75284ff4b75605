"""python -m experiments NAME: one command an experiment, `gpu`, `opening`, `specbench`."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

import typer

from backend.bench.quiet import wait_for_quiet
from backend.cli.console import complain, out, say
from backend.cli.options import (
    Columns,
    MaxNewTokens,
    PromptSet,
    Target,
    Temperature,
    Wait,
    parsed,
    unbundled,
)
from backend.errors import DerbyError
from backend.racing.ledger import Ledger
from backend.racing.models import LoadedModels
from backend.results.sentences import taken_by_others
from backend.strategies.registry import DEFAULT_COLUMNS
from backend.types import Request, Sampling
from experiments.baselines import ASSISTED, PEERS
from experiments.costs import COSTS
from experiments.coverage import COVERAGE
from experiments.experiment import Experiment, Setup
from experiments.first_token import FIRST_TOKEN
from experiments.gpu import gpu
from experiments.interleaved import INTERLEAVED
from experiments.opening import opening
from experiments.program import PROGRAM
from experiments.rollback import ROLLBACK
from experiments.specbench import specbench
from experiments.structure import STRUCTURE

EXPERIMENTS = (
    INTERLEAVED,
    COVERAGE,
    COSTS,
    PROGRAM,
    STRUCTURE,
    PEERS,
    ASSISTED,
    ROLLBACK,
    FIRST_TOKEN,
)

app = typer.Typer(
    help="What developers measure now and then.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def command(experiment: Experiment) -> Callable[..., None]:
    """The command that runs this experiment, prints its table, and at last its JSON."""

    def measure(
        prompts: PromptSet,
        target: Target,
        column: Columns = list(DEFAULT_COLUMNS),
        max_new_tokens: MaxNewTokens = 128,
        temperature: Temperature = 0.0,
        rounds: Annotated[int, typer.Option(min=1, help="Of what has prompts of its own.")] = 3,
        wait: Wait = 30,
    ) -> None:
        setup = Setup(
            prompts.read(),
            parsed(column),
            Request("-", max_new_tokens, Sampling(temperature)),
            target.spec,
            LoadedModels(),
            say,
            rounds,
        )
        wait_for_quiet(wait, say)
        ledger = Ledger()
        found = experiment.run(setup)
        say(f"Meanwhile {taken_by_others(ledger.conditions())}.")
        out.print(experiment.table(setup, found))
        print(json.dumps([asdict(result) for result in found]))

    return unbundled(measure)


for each in EXPERIMENTS:
    app.command(each.name, help=each.help)(command(each))
app.command("gpu", help="Measure all that a CUDA device can show, the most valuable first.")(gpu)
app.command("opening", help="Record anew the race that a page just opened plays.")(opening)
app.command("specbench", help="Every method by category, as Spec-Bench's tables have it.")(
    unbundled(specbench)
)


def main() -> None:
    try:
        app()
    except DerbyError as error:
        complain(error.with_place)
        sys.exit(2)


if __name__ == "__main__":
    main()
