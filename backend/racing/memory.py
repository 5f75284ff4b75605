"""How much memory the weights of loaded models may take on this machine."""

import os
from pathlib import Path

from backend.errors import DerbyError

#: Overrides the budget; in bytes.
BUDGET_VARIABLE = "DECODE_DERBY_MODEL_BYTES"

#: Of the memory there is: the rest is for KV caches, activations, the page and everybody else.
SHARE = 0.6

#: Where Linux says what a container may use: a number of bytes, or "max".
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def model_budget() -> int:
    """Bytes: what the environment states, or a share of the memory that this process may use.

    Raises DerbyError if the environment states anything but a whole number above 0.
    """
    stated = os.environ.get(BUDGET_VARIABLE, "").strip()
    if not stated:
        return int(SHARE * _memory())
    if not stated.isdecimal() or int(stated) == 0:
        raise DerbyError(
            f"{BUDGET_VARIABLE} is {stated!r:.60}; it must be a number of bytes above 0, such as "
            "8000000000."
        )
    return int(stated)


def _memory() -> int:
    """Bytes of the machine, or of the container if that has less."""
    import psutil

    total = psutil.virtual_memory().total
    try:
        return min(total, int(CONTAINER_LIMIT.read_text()))
    except (OSError, ValueError):
        return total
