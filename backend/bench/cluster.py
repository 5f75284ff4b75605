"""The jobs of a plan on the machines of a Ray cluster: one actor a machine, each with models of its
own, so that a column has its machine to itself.

An actor whose machine is lost is not asked again; its job runs elsewhere.
"""

import importlib.util
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from backend.bench.plan import Plan
from backend.bench.rows import Row, remaining, row_of
from backend.bench.runner import boards_of, raced
from backend.errors import DerbyError
from backend.models.files import Say

#: What the machines need of this program; the packages are installed there.
CODE = Path(__file__).resolve().parents[2]
LEFT_OUT = [".git", ".venv", "build", "tests", "docs", "experiments", "plugins"]

#: Times that a job is begun if the machines that it runs on are lost.
TRIES = 3


class Runner:
    """What runs on a machine: the jobs of one plan, by number."""

    def __init__(self, plan: Plan, machine: str) -> None:
        from backend.racing.models import LoadedModels

        self._plan, self._machine, self._warm = plan, machine, False
        self._models = LoadedModels()

    def row(self, number: int) -> Row:
        """A job's row. The first race on a machine is slower, and so runs twice."""
        job, race = self._plan.jobs[number], partial(raced, models=self._models)
        if not self._warm:
            race(job.race)
            self._warm = True
        return row_of(self._plan, job, boards_of(job, race), machine=self._machine)


def run_on_cluster(address: str, plan: Plan, done: Sequence[Row], say: Say) -> Iterator[Row]:
    """The rows that `done` lacks, in the order in which the machines of the cluster at `address`
    ("auto": the one that this machine belongs to) finish them.

    Raises DerbyError without Ray, without a cluster, or if no machine is left.
    """
    if importlib.util.find_spec("ray") is None:
        raise DerbyError(
            "A cluster needs Ray: pip install -r requirements-ray.txt, or leave --cluster out."
        )
    ray = import_module("ray")
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            runtime_env={"working_dir": str(CODE), "excludes": LEFT_OUT},
        )
    except (ConnectionError, ValueError) as error:
        raise DerbyError(
            f"There is no Ray cluster at {address!r}: start its head with ray start --head, or "
            "leave --cluster out."
        ) from error
    try:
        yield from _rows(plan, done, say)
    finally:
        ray.shutdown()


def _rows(plan: Plan, done: Sequence[Row], say: Say) -> Iterator[Row]:
    """Ray's pool gives a free actor the next job. What was lost comes again in another round."""
    errors = import_module("ray.exceptions")
    waiting, lost = [job.number for job in remaining(plan, done)], Counter[int]()
    pool, machines = _pool(plan)
    say(f"{len(waiting)} prompts run on {machines} machines.")
    while waiting:
        running = set[int]()
        while waiting or pool.has_next():
            while waiting and pool.has_free():
                running.add(waiting[0])
                pool.submit(lambda actor, number: actor.row.remote(number), waiting.pop(0))
            if not pool.has_next():
                raise DerbyError("Every machine of the cluster was lost: start them and run again.")
            try:
                row = pool.get_next_unordered()
            except errors.RayActorError as error:
                pool.pop_idle()  # the pool has just taken the lost actor back, behind all others
                reason = str(error).strip().partition("\n")[0]
                say(f"A machine was lost ({reason}): its prompt runs on another one.")
            except errors.RayTaskError as error:
                raise error.cause if isinstance(error.cause, DerbyError) else error from None
            else:
                running.remove(row.job)
                yield row
        lost.update(running)
        if any(times == TRIES for times in lost.values()):
            raise DerbyError(f"{TRIES} machines were lost at the same prompt: leave it out.")
        waiting = sorted(running)


def _pool(plan: Plan) -> tuple[Any, int]:
    """A pool of one actor a machine, and how many they are."""
    ray = import_module("ray")
    on_node = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    remote, actors = ray.remote(Runner), []
    for node in (node for node in ray.nodes() if node["Alive"]):
        here = on_node(node["NodeID"], soft=False)
        name = f"{node['NodeManagerHostname']} {node['NodeID'][:6]}"
        actors.append(remote.options(scheduling_strategy=here, num_cpus=0).remote(plan, name))
    return import_module("ray.util.actor_pool").ActorPool(actors), len(actors)
