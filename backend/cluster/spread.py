"""A benchmark over the machines of a cluster: each job wholly on one of them."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from backend.bench.plan import Job, Plan
from backend.bench.rows import Row, left_of, row_of
from backend.errors import DerbyError
from backend.events import Failed
from backend.racing.hosts.host import POLL, Lease, Machines
from backend.results.scoreboard import Scoreboard

Say = Callable[[str], None]

#: Times that a job is begun, each on another machine, if its machine is lost.
TRIES = 3

#: Machines that are used at once.
MOST = 256


def spread(machines: Machines, plan: Plan, done: Sequence[Row], say: Say) -> Iterator[Row]:
    """The rows that `done` lacks, from whichever machines are free.

    A job whose machine is lost starts again on another one, which is said. Raises DerbyError if
    that happens to one job too often.
    """
    waiting = deque((job, 1) for job in left_of(plan, done))
    running: dict[Future[Row | None], tuple[Job, int]] = {}
    runner, count = _Runner(plan), len(plan.jobs) - len(waiting)
    with ThreadPoolExecutor(MOST) as pool:
        while waiting or running:
            if waiting and (lease := machines.lease((waiting[0][0].race,))) is not None:
                job, tries = waiting.popleft()
                running[pool.submit(runner.row, job, lease)] = job, tries
                continue
            for future in [future for future in running if future.done()]:
                job, tries = running.pop(future)
                if (row := future.result()) is not None:
                    count += 1
                    say(f"{count} of {len(plan.jobs)} ({row.machine})")
                    yield row
                elif tries == TRIES:
                    raise DerbyError(
                        f"{TRIES} machines were lost at prompt {job.place + 1}: leave it out."
                    )
                else:
                    say(f"A machine was lost: prompt {job.place + 1} runs on another one.")
                    waiting.append((job, tries + 1))
            time.sleep(POLL)


class _Runner:
    """Runs jobs on machines that are held; on a cold one twice, and the first time does not
    count. Thread-safe.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._warm: set[str] = set()

    def row(self, job: Job, lease: Lease) -> Row | None:
        """None if the machine was lost. Releases it."""
        try:
            row = self._raced(job, lease)
            if row is not None and row.machine not in self._warm:
                self._warm.add(row.machine)
                row = self._raced(job, lease)
            return row
        finally:
            lease.release()

    def _raced(self, job: Job, lease: Lease) -> Row | None:
        board, begun, lost = Scoreboard(job.race.columns), time.monotonic(), False
        for event in lease.stream(job.race, lambda: False):
            board.add(event)
            lost |= isinstance(event, Failed) and event.cause == "machine"
        if lost:
            return None
        return row_of(self._plan, job, board, time.monotonic() - begun)
