"""The process's one openvino.Core, and the devices that it offers."""

from functools import lru_cache
from math import inf
from typing import Any

from backend.errors import unknown
from backend.machine import quota, threads


@lru_cache(maxsize=1)
def core() -> Any:
    """The process's one openvino.Core. By itself it counts a container's cores, not what its quota
    allows of them: threads that have to wait for their turn slow all others down.
    """
    import openvino

    made = openvino.Core()
    if quota() < inf:
        made.set_property("CPU", {"INFERENCE_NUM_THREADS": threads()})
    return made


def available_devices() -> list[str]:
    """Names that an OpenVINO engine accepts as its device, "AUTO" last."""
    return [*core().available_devices, "AUTO"]


def require_device(device: str) -> None:
    """Raise DerbyError, with those there are, unless this is one of them."""
    if device not in (devices := available_devices()):
        raise unknown("OpenVINO device", device, devices)
