"""What an experiment is: something to measure, by a setup, and how its results are printed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from backend.bench.prompts import Prompt
from backend.models.files import Say
from backend.racing.models import LoadedModels
from backend.types import ModelSpec, Request

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Setup:
    """What is to be measured, on what. An experiment reads what it needs of it.

    `request` holds the limit and the sampling; its prompt is replaced. `rounds`: how many races an
    experiment runs that takes the prompts in turn. `say` is given what is done now.
    """

    prompts: Sequence[Prompt]
    columns: Sequence[str]
    request: Request
    target: ModelSpec
    models: LoadedModels
    say: Say
    rounds: int

    def in_turns(self, sides: Sequence[Callable[[str], Result]]) -> list[list[Result]]:
        """The sides' results by prompt, in the order of `sides`. Who runs first alternates, so that
        nobody gains from its place; each runs once more at first, which does not count.
        """
        for side in sides:
            side(self.prompts[0].text)
        results: list[list[Result]] = []
        for number, prompt in enumerate(self.prompts):
            self.say(f"prompt {number + 1} of {len(self.prompts)} ({prompt.category})")
            order = [(number + i) % len(sides) for i in range(len(sides))]
            by_side = {index: sides[index](prompt.text) for index in order}
            results.append([by_side[index] for index in range(len(sides))])
        return results


@dataclass(frozen=True, slots=True)
class Experiment:
    """One kind of measurement. `run` gives one dataclass instance a line of the table; their
    fields are the columns.
    """

    name: str
    help: str
    run: Callable[[Setup], Sequence[Any]]
