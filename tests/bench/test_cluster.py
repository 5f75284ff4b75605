"""A benchmark on Ray nodes: every prompt counts once, and a machine that dies ends it."""

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module

import psutil
import pytest

from backend.bench.cluster import run_on_cluster
from backend.bench.plan import Plan
from backend.bench.prompts import PROMPTS
from backend.errors import DerbyError
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("default"),  # Ray's own
]

PLAN = Plan(
    (replace(PROMPTS[0], later=("And on two machines?",)), *PROMPTS[1:6]),
    (parse_column("lookup:k=3"),),
    Request("-", 24),
    ModelSpec("fake", "fake"),
    anywhere=True,
)


def test_no_cluster_is_one_sentence() -> None:
    """First here: the fixture below starts one for all that follow."""
    with pytest.raises(DerbyError, match="There is no Ray cluster at 'auto'"):
        list(run_on_cluster("auto", PLAN, [], print))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster of two nodes on this machine."""
    cluster = import_module("ray.cluster_utils").Cluster
    nodes = cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    nodes.add_node(num_cpus=1)
    yield nodes.address
    nodes.shutdown()


def test_every_prompt_counts_once(address: str) -> None:
    lines = list[str]()
    rows = list(run_on_cluster(address, PLAN, [], lines.append))
    assert lines == ["6 prompts run on 2 machines."]
    assert sorted(row.job for row in rows) == list(range(6))
    for row in rows:
        assert [len(turn) for turn in row.turns] == [2] * (2 if row.job == 0 else 1)
        assert all(not isinstance(each, str) and each.equal for turn in row.turns for each in turn)
    again = list(run_on_cluster(address, PLAN, rows[:-1], print))
    assert [row.job for row in again] == [rows[-1].job], "what is measured already is left out"


def actors() -> list[psutil.Process]:
    processes = psutil.process_iter(["cmdline"])
    return [one for one in processes if "ray::Runner" in str(one.info["cmdline"])]


def test_a_lost_machine_is_one_sentence(address: str) -> None:
    earlier = actors()  # of the tests above: they may end late

    def kill_one(_: str) -> None:
        started: list[psutil.Process] = []
        while not started:
            started = [actor for actor in actors() if actor not in earlier]
        started[0].kill()

    with pytest.raises(DerbyError, match="was lost: run again"):
        list(run_on_cluster(address, PLAN, [], kill_one))
