"""What an engine says of itself, without loading anything: all that the app knows of it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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
        """Raises ValueError for a declaration that the app could not show or use."""
        named = NAME.fullmatch(self.name) and self.title and self.precisions
        if not (named and all(self.precisions) and (self.models or not self.demo)):
            raise ValueError(f"invalid engine {self.name!r:.60}")
