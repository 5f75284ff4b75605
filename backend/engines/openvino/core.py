"""The process's one openvino.Core, and the devices that it offers."""

from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1)
def core() -> Any:
    """The process's one openvino.Core."""
    import openvino

    return openvino.Core()


def available_devices() -> list[str]:
    """Names that an OpenVINO engine accepts as its device, "AUTO" last."""
    return [*core().available_devices, "AUTO"]
