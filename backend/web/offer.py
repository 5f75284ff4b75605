"""What the operator of this page offers: engines, their precisions and devices, and models.

Visitors choose by label or number and never name a path; what goes back to them names none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backend.engines.registry import engine_named
from backend.models.files import BUILT_IN

HUB = "hub"


@dataclass(frozen=True, slots=True)
class Runtime:
    """An engine with the precisions and devices to choose from; the first ones are the defaults."""

    engine: str
    title: str
    precisions: tuple[str, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """`models` are names as engines take them; the first one is the default."""

    runtimes: tuple[Runtime, ...]
    models: tuple[str, ...]

    def runtime(self, engine: str) -> Runtime | None:
        return next((r for r in self.runtimes if r.engine == engine), None)

    @property
    def labels(self) -> dict[str, str]:
        """The models' keys, "0", "1", ..., and the labels to show for them."""
        return {str(i): _label(name) for i, name in enumerate(self.models)}

    def public(self, text: str) -> str:
        """`text` with the operator's paths replaced by their labels."""
        # Longest first: one folder may lie in another.
        for name in sorted(self.models, key=len, reverse=True):
            if _is_path(name):
                whole = str(Path(name).expanduser().absolute())
                for path in sorted({name, whole}, key=len, reverse=True):
                    text = text.replace(path, _label(name))
        return text


def _is_path(name: str) -> bool:
    return name.startswith((".", "~")) or Path(name).is_absolute()


def _label(name: str) -> str:
    return Path(name).expanduser().absolute().name if _is_path(name) else name


def offer_of(names: Sequence[str], models: Sequence[str] = (BUILT_IN,)) -> Offer:
    """What these engines offer on this machine: `models`, and those that they bring themselves.

    Raises DerbyError for an unknown engine.
    """
    chosen = [engine_named(name) for name in names]
    runtimes = tuple(Runtime(e.name, e.title, e.precisions, e.devices()) for e in chosen)
    # The default model must be one that the default engine knows.
    ordered = dict.fromkeys(name for e in chosen for name in e.models or models)
    return Offer(runtimes, tuple(ordered | dict.fromkeys(models)))
