"""Runs the remaining jobs of a plan, once the machine is quiet. Each row is there as soon as its
job has ended.
"""

import time
from collections.abc import Callable, Iterator, Sequence

from backend.bench.plan import Job, Plan
from backend.bench.rows import PromptRow, remaining, row_of
from backend.events import Event, Preparing
from backend.models.files import Say
from backend.racing.ledger import Ledger
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard

#: Seconds of one look at the machine, and the share that others may take of a quiet one.
LOOK, QUIET = 1.0, 0.1


def wait_for_quiet(seconds: int, say: Say) -> None:
    """Wait until others leave the machine alone, so many seconds at most, and say so if they do
    not.
    """
    for number in range(seconds):
        ledger = Ledger()
        time.sleep(LOOK)
        others = ledger.conditions().others
        if others <= QUIET:
            return
        if not number:
            say(f"Others use {others:.0%} of the machine: waiting, {seconds} s at most.")
    if seconds:
        say("The machine did not become quiet: only ratios can be trusted.")


class Runner:
    """Makes rows on one machine; `race` runs one race, of which the first is slower, and so runs
    twice.
    """

    def __init__(self, plan: Plan, race: Callable[[Race], Scoreboard]) -> None:
        self._plan, self._race, self._warm = plan, race, False

    def row(self, job: Job) -> PromptRow:
        if not self._warm:
            self._race(job.race)
            self._warm = True
        boards = list[Scoreboard]()  # one a turn of the chat
        while (turn := job.next_race(boards)) is not None:
            boards.append(self._race(turn))
        return row_of(self._plan, job, boards)


def run(
    plan: Plan, done: Sequence[PromptRow], race: Callable[[Race], Scoreboard], say: Say
) -> Iterator[PromptRow]:
    """The rows that `done` lacks."""
    runner = Runner(plan, race)
    for job in remaining(plan, done):
        say(f"run {job.number + 1} of {len(plan.jobs)} ({job.category})")
        yield runner.row(job)


def raced(race: Race, models: LoadedModels, say: Say = lambda _: None) -> Scoreboard:
    """The board of a race that was run in this process, on this thread; `say` is told what takes
    time.
    """
    board = Scoreboard(race.columns)

    def add(event: Event) -> None:
        if isinstance(event, Preparing):
            say(event.text)
        board.add(event)

    race.run(models, add, lambda: False)
    return board
