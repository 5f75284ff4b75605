"""What an experiment is: something to measure, by a setup, and how its results are printed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from rich.table import Table

from backend.bench.prompts import Prompt
from backend.bench.tables import results_table
from backend.models.files import Say
from backend.racing.models import LoadedModels
from backend.strategies.column import Column
from backend.types import ModelSpec, Request


@dataclass(frozen=True, slots=True)
class Setup:
    """What is to be measured, on what. An experiment reads what it needs of it.

    `request` holds the limit and the sampling; its prompt is replaced. `rounds`: how often an
    experiment with prompts of its own repeats them. `say` is given what is done now.
    """

    prompts: Sequence[Prompt]
    columns: Sequence[Column]
    request: Request
    target: ModelSpec
    models: LoadedModels
    say: Say
    rounds: int = 3

    @property
    def conditions(self) -> str:
        """What the results hold for, in a few words."""
        sampling = self.request.sampling
        return f"{self.target}, {self.request.max_new_tokens} new tokens, T={sampling.temperature}"

    def say_prompt(self, number: int) -> None:
        """Say which prompt is next."""
        self.say(f"prompt {number + 1} of {len(self.prompts)} ({self.prompts[number].category})")

    def say_round(self, number: int) -> None:
        """Say which round of an experiment with prompts of its own is next."""
        self.say(f"round {number + 1} of {self.rounds}")


@dataclass(frozen=True, slots=True)
class Experiment:
    """One kind of measurement. `run` gives one dataclass instance a line of the table; their
    fields are the columns. `conditions` says what the figures hold for, in the table's title.
    """

    name: str
    help: str
    run: Callable[[Setup], Sequence[Any]]
    conditions: Callable[[Setup], str] = attrgetter("conditions")

    def table(self, setup: Setup, results: Sequence[Any]) -> Table:
        """The results as they are printed."""
        return results_table(f"{self.name}: {self.conditions(setup)}", results)
