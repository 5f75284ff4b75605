"""The rows of the soak by name: the full size of each and a short one."""

import importlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from soak.report import Result


@dataclass(frozen=True, slots=True)
class Row:
    """The function of that name in the module of that name, or another MODULE.FUNCTION, imported
    when it runs; the sizes are its arguments. `timed` rows take the seconds that a caller gives.
    """

    name: str
    full: Mapping[str, Any]
    short: Mapping[str, Any]
    timed: bool = False
    function: str = ""

    def run(self, *, short: bool = False, seconds: float | None = None) -> Result:
        """Run it. Raises whatever breaks in it."""
        size = dict(self.short if short else self.full)
        if self.timed and seconds is not None:
            size["seconds"] = seconds
        begun = time.monotonic()
        module, _, function = (self.function or f"{self.name}.{self.name}").partition(".")
        found = getattr(importlib.import_module(f"soak.{module}"), function)(**size)
        return replace(found, seconds=time.monotonic() - begun)


_ROWS = (
    Row("cycles", {"count": 500, "loads": 20}, {"count": 6, "loads": 0}),
    Row("kills", {"count": 100}, {"count": 4}),
    Row("page", {"count": 30}, {"count": 3}),
    Row("slow", {}, {"readers": 3, "seconds": 4.0}),
    Row("network", {}, {"gaps": (1.0,), "kinds": ("cut",)}),
    Row("disk", {}, {"kills": 3, "flips": 3, "real": False}),
    Row("surroundings", {}, {"only": ("a port that is taken",)}),
    Row("fuzz", {"count": 10_000}, {"count": 25}),
    Row(
        "crowd",
        {"visitors": 200, "seconds": 3600.0},
        {"visitors": 8, "seconds": 4.0},
        timed=True,
    ),
    Row(
        "hostile",
        # As many as one machine serves without a full line: what waits in a full one is a matter of
        # who is refused.
        {"visitors": 40, "seconds": 3600.0, "share": 0.1},
        {"visitors": 12, "seconds": 6.0, "share": 0.75},
        timed=True,
        function="crowd.beside_hostile",
    ),
)
ROWS = {row.name: row for row in _ROWS}
