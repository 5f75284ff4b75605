"""Runs what is to be compared in turns: no side gains from its place or from a cold machine.

A shared machine's speed drifts: figures compare only with those of the same round, and over many
rounds every side must have been first, second and last equally often.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

Subject = TypeVar("Subject")
Result = TypeVar("Result")


def one_round(
    sides: Sequence[Callable[[Subject], Result]], subject: Subject, number: int
) -> list[Result]:
    """Every side's result for one subject, in the order of `sides`; side `number` runs first."""
    order = [(number + i) % len(sides) for i in range(len(sides))]
    results = {index: sides[index](subject) for index in order}
    return [results[index] for index in range(len(sides))]


def rounds(
    sides: Sequence[Callable[[Subject], Result]],
    subjects: Sequence[Subject],
    begin: Callable[[int], None],
    *,
    warm_up: int,
) -> list[list[Result]]:
    """The sides' results by subject; who runs first rotates from subject to subject.

    The first `warm_up` sides run once more on the first subject at the start, which does not count.
    `begin` is given the number of each round before it runs.
    """
    for side in sides[:warm_up]:
        side(subjects[0])
    results: list[list[Result]] = []
    for number, subject in enumerate(subjects):
        begin(number)
        results.append(one_round(sides, subject, number))
    return results
