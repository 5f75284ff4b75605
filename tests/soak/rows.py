"""The rows of the soak by name: what runs each, its full size and a short one."""

import importlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from soak.report import Result


@dataclass(frozen=True, slots=True)
class Row:
    """`module` holds the function `function`, imported when it runs. `timed` rows take the seconds
    that a caller gives. The sizes are its keyword arguments.
    """

    name: str
    module: str
    function: str
    full: Mapping[str, Any]
    short: Mapping[str, Any]
    timed: bool = False

    def run(self, *, short: bool = False, seconds: float | None = None) -> Result:
        """Run it. Raises whatever breaks in it."""
        size = dict(self.short if short else self.full)
        if self.timed and seconds is not None:
            size["seconds"] = seconds
        begun = time.monotonic()
        found = getattr(importlib.import_module(self.module), self.function)(**size)
        return replace(found, seconds=time.monotonic() - begun)


ROWS = {
    row.name: row
    for row in (
        Row(
            "cycles", "soak.cycles", "cycles", {"count": 500, "loads": 20}, {"count": 6, "loads": 0}
        ),
        Row("kills", "soak.kills", "kills", {"count": 100}, {"count": 4}),
        Row("page", "soak.page_ends", "page_ends", {"count": 30}, {"count": 3}),
        Row("slow", "soak.slow", "slow", {}, {"readers": 3, "seconds": 4.0}),
        Row(
            "network",
            "soak.network",
            "network",
            {},
            {"gaps": (1.0,), "kinds": ("cut",)},
        ),
        Row(
            "disk",
            "soak.disk",
            "disk",
            {},
            {"kills": 3, "flips": 3, "real": False},
        ),
        Row(
            "surroundings",
            "soak.surroundings",
            "surroundings",
            {},
            {"only": ("a port that is taken",)},
        ),
        Row("fuzz", "soak.fuzz", "fuzz", {"count": 10_000}, {"count": 25}),
        Row(
            "crowd",
            "soak.crowd",
            "crowd",
            {"visitors": 200, "seconds": 3600.0},
            {"visitors": 8, "seconds": 4.0},
            timed=True,
        ),
    )
}
