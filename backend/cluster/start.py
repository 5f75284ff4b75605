"""The launch of a cluster's host."""

import importlib.util
import os
from collections.abc import Sequence
from functools import partial

from backend.cluster.actor import Setup
from backend.cluster.driver import DriverLink
from backend.cluster.host import ClusterHost
from backend.errors import DerbyError
from backend.kvcache.snapshots import VARIABLE as SNAPSHOTS
from backend.limits import PRIVATE, Limits
from backend.remote.server import VARIABLE as SERVERS
from backend.types import ModelSpec

#: Seconds that the first machine has to join.
FIRST = 60.0

#: What machines are told of the environment.
TOLD = (SNAPSHOTS, SERVERS)


def cluster_host(
    address: str,
    warm: tuple[ModelSpec, ...] = (),
    limits: Limits = PRIVATE,
    models: Sequence[str] = (),
    engines: Sequence[str] = (),
) -> ClusterHost:
    """A host of the machines of the Ray cluster at `address`, "auto" for the one of this machine,
    once one of them is there. Each has the models `warm` loaded, and says which of `models` and
    `engines` it has.

    Raises DerbyError if Ray is not installed, or no machine comes in time.
    """
    if importlib.util.find_spec("ray") is None:
        raise DerbyError(
            "A cluster needs Ray: pip install -r requirements-ray.txt, or leave --cluster out."
        )
    told = {name: os.environ[name] for name in TOLD if name in os.environ}
    setup = Setup(warm, limits, tuple(models), tuple(engines), told)
    host = ClusterHost(address, partial(DriverLink, address, setup))
    if not host.await_machine(FIRST):
        why = host.facts().preparing
        host.close()
        raise DerbyError(
            f"The cluster at {address} has no machine within {FIRST:.0f} s ({why}): start its "
            "head and nodes with ray start."
        )
    return host
