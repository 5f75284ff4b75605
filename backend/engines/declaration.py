"""What an engine says of itself, without loading anything: all that the app knows of it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from backend.errors import DerbyError
from backend.types import ModelSpec

NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class EngineDeclaration:
    """An engine, declared in its own module; heavy libraries load only within the functions.

    `precisions`: the first is the default. `devices()` lists what this machine offers, the
    default first; `device_help` says it without looking. `open(spec, say)` loads a model, an Engine
    or a library's, and tells `say`, in sentences, what takes long; `loads_at_once` if nothing does.
    `estimate_bytes(spec, say)` is what its weights will take in memory, known before they are
    loaded, and `peak_bytes` what opening takes on the way (None: no more); all raise DerbyError for
    what cannot be had.

    `models` are the names of models that the engine brings itself; (): it takes any that
    models/files.py knows. `pass_seconds(spec)` states what passes take, seconds by number of
    rows, {} where that is not worth knowing; None: they are measured. `exact` are the precisions
    in which a row's logits do not depend on how many rows run with it, the usual one first. A
    `demo` stands in for a model, and is offered only where that is asked for.
    """

    name: str
    title: str
    precisions: tuple[str, ...]
    devices: Callable[[], tuple[str, ...]]
    device_help: str
    open: Callable[[ModelSpec, Say], Any]
    estimate_bytes: Callable[[ModelSpec, Say], int]
    peak_bytes: Callable[[ModelSpec, Say], int] | None = None
    models: tuple[str, ...] = ()
    pass_seconds: Callable[[ModelSpec], Mapping[int, float]] | None = None
    loads_at_once: bool = False
    exact: tuple[str, ...] = ()
    demo: bool = False

    def __post_init__(self) -> None:
        """Raises DerbyError for a declaration that the app could not show or use."""
        if not NAME.fullmatch(self.name):
            raise DerbyError(
                f"An engine's name is {self.name!r:.60}; it must be a small letter and up to 39 "
                "small letters, digits, '-' and '_'."
            )
        if not (self.title and self.precisions and all(self.precisions)):
            raise DerbyError(
                f"The engine {self.name!r} must declare a title and at least one precision."
            )
        if self.demo and not self.models:
            raise DerbyError(
                f"The engine {self.name!r} stands in for a model, but brings none: name its models."
            )
