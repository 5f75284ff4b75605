"""OpenVINO itself: the process's one Core, its devices, and the precisions that models run in."""

from functools import lru_cache
from math import inf
from typing import Any

from backend.errors import unknown
from backend.machine import quota, threads

#: Bytes that a weight takes, by precision: int8 with one scale and zero point a row; int4 with one
#: in every 32 at the least, and 8 bits for the output projection; the exact ones with a scale and a
#: zero of 32 bits for every 16 or 32, at the most.
BYTES = {"fp32": 4.0, "int8": 1.02, "int4": 0.8, "int4-exact": 1.0, "int8-exact": 1.5}

#: Those in which a row's logits do not depend on how many rows ran with it: float32 arithmetic.
EXACT_PRECISIONS = ("fp32", "int4-exact", "int8-exact")

#: Logits of a row must not depend on how many rows ran with it. At the defaults (bf16 inference,
#: quantised cache, activations quantised on the fly) they do, and texts would differ.
EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}


@lru_cache(maxsize=1)
def core() -> Any:
    """The process's one openvino.Core. By itself it counts a container's cores, not what its quota
    allows of them: threads that have to wait for their turn slow all others down.
    """
    import openvino

    shared = openvino.Core()
    if quota() < inf:
        shared.set_property("CPU", {"INFERENCE_NUM_THREADS": threads()})
    return shared


def devices() -> tuple[str, ...]:
    """Names that an OpenVINO engine accepts as its device. CPU first: it is on every machine, and
    what the built-in figures refer to.
    """
    return tuple(sorted([*core().available_devices, "AUTO"], key=lambda name: name != "CPU"))


def require_device(device: str) -> None:
    """Raise DerbyError, with those there are, unless this is one of them."""
    if device not in (known := devices()):
        raise unknown("OpenVINO device", device, known)
