"""The jobs of a plan on the machines of a Ray cluster: one actor a machine, each with models of its
own, so that a column has its machine to itself.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from backend.bench.plan import Plan
from backend.bench.rows import PromptRow, remaining
from backend.bench.runner import Runner, raced
from backend.errors import DerbyError
from backend.models.files import Say
from backend.racing.models import LoadedModels

#: What the machines need of this program; the packages are installed there.
CODE = Path(__file__).resolve().parents[2]
LEFT_OUT = [".git", ".venv", "build", "tests", "docs", "experiments", "plugins"]


def run_on_cluster(
    address: str, plan: Plan, done: Sequence[PromptRow], say: Say
) -> Iterator[PromptRow]:
    """The rows that `done` lacks, in the order in which the machines of the cluster at `address`
    ("auto": the one that this machine belongs to) finish them.

    Raises DerbyError without Ray, without a cluster, or if a machine is lost.
    """
    try:
        ray = import_module("ray")
    except ImportError as error:
        raise DerbyError(
            "A cluster needs Ray: pip install -r requirements-ray.txt, or leave --cluster out."
        ) from error
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
        on_node = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        jobs, actor = remaining(plan, done), ray.remote(num_cpus=0)(Runner)
        runners = [
            actor.options(scheduling_strategy=on_node(node["NodeID"], soft=False)).remote(
                plan, partial(raced, models=LoadedModels())
            )
            for node in ray.nodes()
            if node["Alive"]
        ]
        say(f"{len(jobs)} prompts run on {len(runners)} machines.")
        pool = ray.util.ActorPool(runners)
        yield from pool.map_unordered(lambda runner, job: runner.row.remote(job), jobs)
    except ray.exceptions.RayActorError as error:
        raise DerbyError(
            "A machine of the cluster was lost: run again, with the same --results, which keeps "
            "what is measured."
        ) from error
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, DerbyError) else error from None
    finally:
        ray.shutdown()
