"""python -m experiments NAME: what developers measure now and then, and how the draft is made."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

import typer

from backend.bench.quiet import wait_for_quiet
from backend.bench.tables import results_table
from backend.cli.console import complain, out, say
from backend.cli.options import (
    Columns,
    MaxNewTokens,
    PromptSet,
    Target,
    Temperature,
    Wait,
    unbundled,
)
from backend.errors import DerbyError
from backend.racing.ledger import Ledger
from backend.racing.models import LoadedModels
from backend.results.sentences import taken_by_others
from backend.types import Request, Sampling
from experiments.built_in import built_in
from experiments.coverage import COVERAGE
from experiments.experiment import Experiment, Setup
from experiments.first_token import FIRST_TOKEN
from experiments.gpu import gpu
from experiments.training.train import train

EXPERIMENTS = (COVERAGE, FIRST_TOKEN)

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
        column: Columns = ["kv"],
        max_new_tokens: MaxNewTokens = 128,
        temperature: Temperature = 0.0,
        rounds: Annotated[int, typer.Option(min=1, help="Races, if it races.")] = 3,
        wait: Wait = 30,
    ) -> None:
        request = Request("-", max_new_tokens, Sampling(temperature))
        chosen, models = prompts.read(), LoadedModels()
        setup = Setup(chosen, column, request, target.spec, models, say, rounds)
        wait_for_quiet(wait, say)
        ledger = Ledger()
        results = experiment.run(setup)
        say(f"Meanwhile {taken_by_others(ledger.conditions())}.")
        of = f"{target.spec}, {max_new_tokens} new tokens, T={temperature}"
        out.print(results_table(f"{experiment.name}: {of}", results))
        print(json.dumps([asdict(result) for result in results]))

    return unbundled(measure)


for each in EXPERIMENTS:
    app.command(each.name, help=each.help)(command(each))
app.command("built_in")(built_in)
app.command("gpu")(gpu)
app.command("train")(train)


def main() -> None:
    try:
        app()
    except DerbyError as error:
        complain(error.with_place)
        sys.exit(2)


if __name__ == "__main__":
    main()
