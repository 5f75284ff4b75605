"""A program: how many more races two nodes run than one, on the fake engine, whose passes sleep.

.venv/bin/python tests/cluster/throughput.py
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

sys.path[:0] = [str(Path(__file__).resolve().parents[level]) for level in (1, 2)]

from hosting import never, until
from ray_nodes import SLOW, ready, two_nodes

from backend.cluster.host import ClusterHost
from backend.cluster.start import cluster_host
from backend.racing.race import Race
from backend.strategies.column import default_column
from backend.types import ModelSpec, Request

RACES = 16
COLUMNS = default_column("kv"), default_column("lookup")
RACE = Race(Request("Hi", 32), COLUMNS, ModelSpec("fake-slow", "fake"))


def seconds(host: ClusterHost, at_once: int) -> float:
    """What so many races take, asked for by so many visitors at once."""
    begun = time.monotonic()
    with ThreadPoolExecutor(at_once) as visitors:
        list(visitors.map(lambda _: list(host.stream(RACE, never)), range(RACES)))
    return time.monotonic() - begun


def main() -> None:
    with two_nodes() as nodes:
        host = cluster_host(nodes.address, engines=("fake",))
        until(lambda: len(ready(host)) == 2, SLOW)
        seconds(host, 2)
        found = [(seconds(host, 1), seconds(host, 2)) for _ in range(3)]
        host.close()
    for one, two in found:
        print(f"{RACES} races: {one:.2f} s on one node, {two:.2f} s on two: {one / two:.2f} times")
    print(f"median: {median(one / two for one, two in found):.2f} times")


if __name__ == "__main__":
    main()
