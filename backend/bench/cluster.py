"""The jobs of a plan on the machines of a Ray cluster: one actor a machine, each with models of its
own, so that a column has its machine to itself.
"""

import importlib.util
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
from backend.racing.models import LoadedModels

#: What the machines need of this program; the packages are installed there.
CODE = Path(__file__).resolve().parents[2]
LEFT_OUT = [".git", ".venv", "build", "tests", "docs", "experiments", "plugins"]


class Runner:
    """What runs on a machine: the jobs of one plan, by number."""

    def __init__(self, plan: Plan, machine: str) -> None:
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

    Raises DerbyError without Ray, without a cluster, or if a machine is lost.
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
    errors, pool = import_module("ray.exceptions"), import_module("ray.util").ActorPool
    numbers, actors = [job.number for job in remaining(plan, done)], _actors(plan)
    say(f"{len(numbers)} prompts run on {len(actors)} machines.")
    try:
        yield from pool(actors).map_unordered(lambda actor, n: actor.row.remote(n), numbers)
    except errors.RayActorError as error:
        raise DerbyError(
            "A machine of the cluster was lost: run again, with the same --results, which keeps "
            "what is measured."
        ) from error
    except errors.RayTaskError as error:
        raise error.cause if isinstance(error.cause, DerbyError) else error from None


def _actors(plan: Plan) -> list[Any]:
    """One actor a machine."""
    ray = import_module("ray")
    on_node = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    remote, actors = ray.remote(Runner), []
    for node in (node for node in ray.nodes() if node["Alive"]):
        place = on_node(node["NodeID"], soft=False)
        name = f"{node['NodeManagerHostname']} {node['NodeID'][:6]}"
        actors.append(remote.options(scheduling_strategy=place, num_cpus=0).remote(plan, name))
    return actors
