"""Runs the jobs of a plan that are left: here, on the machines of a cluster, or one by one as a
visitor's races. Each row is there as soon as its job has ended.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event as Flag

from backend.bench.plan import Job, Plan
from backend.bench.rows import Row, left_of, row_of
from backend.errors import DerbyError
from backend.events import Event, Preparing
from backend.racing.hosts.host import POLL, Lease, Machines
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.metrics import Score
from backend.results.scoreboard import Scoreboard

#: Of a model for which Race.raw_allowed made a difference.
RAW = "The model has no chat template, so prompts are sent as they are."

#: Times that a job is begun, if its machine is lost.
TRIES = 3

#: Machines of a cluster that are used at once.
MOST = 256

Say = Callable[[str], object]


class Work:
    """The jobs that `done` lacks, given out in the plan's order. One that was given out comes again
    if its machine was lost, or was cold: the first race on a machine is slower, and does not count.
    """

    def __init__(self, plan: Plan, done: Sequence[Row], say: Say = lambda _: None) -> None:
        self._plan = plan
        self._say = say
        self._warm: set[str] = set()
        self._raw = False
        self._lost = Counter[int]()
        self._begun: dict[int, float] = {}
        self.waiting = deque(left_of(plan, done))

    @property
    def cold(self) -> bool:
        """Whether no machine has raced yet."""
        return not self._warm

    def take(self) -> Job:
        """The next job, which begins now."""
        job = self.waiting.popleft()
        run = f"run {job.number + 1} of {len(self._plan.jobs)} ({job.category})"
        self._say("warming up" if self.cold else run)
        self._begun[job.number] = time.monotonic()
        return job

    def row(self, job: Job, board: Scoreboard, public: Callable[[str], str] = str) -> Row | None:
        """What a job's race came to, as `row_of` has it; None if the job runs again. Raises
        DerbyError if it lost too many machines.
        """
        row = row_of(self._plan, job, board, time.monotonic() - self._begun[job.number], public)
        if row.raw and not self._raw:
            self._raw = True
            self._say(RAW)
        if any(score.cause == "machine" for score in board.scores):
            self._lost[job.number] += 1
            if self._lost[job.number] == TRIES:
                raise DerbyError(
                    f"{TRIES} machines were lost at prompt {job.place + 1}: leave it out."
                )
            self._warm.discard(row.machine)  # should it come back, it is a new one
            self._say(f"A machine was lost: prompt {job.place + 1} runs on another one.")
        elif row.machine in self._warm:
            return row
        else:
            self._warm.add(row.machine)
        self.waiting.appendleft(job)
        return None


def run(
    plan: Plan, done: Sequence[Row], race: Callable[[Race], Scoreboard], say: Say
) -> Iterator[Row]:
    """The rows that `done` lacks; `race` runs one race."""
    work = Work(plan, done, say)
    while work.waiting:
        job = work.take()
        if (row := work.row(job, race(job.race))) is not None:
            yield row


def run_on(machines: Machines, plan: Plan, done: Sequence[Row], say: Say) -> Iterator[Row]:
    """The same, from whichever machines are free."""
    work, running = Work(plan, done, say), dict[Future[Scoreboard], Job]()
    # A server answers one column at a time, whichever machine asks.
    most = 1 if any(column.strategy.lane is not None for column in plan.columns) else MOST
    with ThreadPoolExecutor(MOST) as pool, ended() as over:
        while work.waiting or running:
            free = work.waiting and len(running) < most
            if free and (lease := machines.lease((work.waiting[0].race,))) is not None:
                job = work.take()
                running[pool.submit(_raced_on, lease, job.race, over)] = job
                continue
            for future in [future for future in running if future.done()]:
                if (row := work.row(running.pop(future), future.result())) is not None:
                    yield row
            time.sleep(POLL)


@contextmanager
def ended() -> Iterator[Callable[[], bool]]:
    """Whether it is over, however it ended: what runs elsewhere stops then."""
    over = Flag()
    try:
        yield over.is_set
    finally:
        over.set()


def _raced_on(lease: Lease, race: Race, stopped: Callable[[], bool]) -> Scoreboard:
    """The board of a race on a machine that is held, and then released."""
    board = Scoreboard(race.columns)
    try:
        for event in lease.stream(race, stopped):
            board.add(event)
    finally:
        lease.release()
    return board


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


def whole(board: Scoreboard) -> Scoreboard:
    """The same board. Raises DerbyError if a column failed."""
    for column, score in zip(board.columns, board.scores, strict=True):
        if score.state != "done":
            raise DerbyError(f"{column.label} did not finish: {score.message}")
    return board


def run_solo(race: Race, index: int, models: LoadedModels) -> Score:
    """Run one of the race's columns alone. Raises DerbyError if it fails."""
    alone = Race(race.request, (race.columns[index],), race.target)
    return whole(raced(alone, models)).scores[0]
