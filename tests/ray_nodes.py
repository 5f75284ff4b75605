"""Ray nodes on this machine, for loopback alone, with what requirements-ray.txt installs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from backend.cluster.host import ClusterHost

#: Seconds that Ray may take to start a node and an actor on a busy machine.
SLOW = 120.0

LOCAL = {"node_ip_address": "127.0.0.1", "num_cpus": 1}

#: No word to Ray's makers; and 127.0.0.1 is not to be taken for the machine's other address.
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


class Nodes:
    """A cluster of this machine's: its head, named "one", and nodes that join and are killed."""

    def __init__(self) -> None:
        self._cluster: Any = import_module("ray.cluster_utils").Cluster(
            initialize_head=True,
            head_node_args={**LOCAL, "node_name": "one", "include_dashboard": False},
        )
        self.address: str = self._cluster.address

    def join(self, name: str) -> Any:
        return self._cluster.add_node(wait=False, node_name=name, **LOCAL)

    def kill(self, node: Any) -> None:
        """As if its machine had lost its power: SIGKILL for the node, which takes its actors."""
        self._cluster.remove_node(node, allow_graceful=False)

    def end(self) -> None:
        self._cluster.shutdown()


@contextmanager
def two_nodes() -> Iterator[Nodes]:
    """Nodes "one" and "two", until the end."""
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    cluster = Nodes()
    try:
        cluster.join("two")
        yield cluster
    finally:
        cluster.end()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def ready(host: ClusterHost) -> list[str]:
    """Names of the machines that take races."""
    return sorted(machine.name for machine in host.machines if not machine.preparing)
