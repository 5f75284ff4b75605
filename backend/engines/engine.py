"""An engine: what it declares without loading anything, and a loaded model that opens sessions."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from backend.engines.session import Session
from backend.errors import DerbyError, either
from backend.models.prepared import Say
from backend.tokenizer import Tokenizer
from backend.types import Guesses, Layers, ModelSpec, chain_parents

NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")


@dataclass(frozen=True, slots=True)
class EngineDeclaration:
    """An engine, declared in its own module; heavy libraries load only within the functions, which
    raise DerbyError for what cannot be had, and say in sentences what takes long.
    """

    name: str
    title: str
    precisions: tuple[str, ...]  # the first is the default
    devices: Callable[[], tuple[str, ...]]  # of this machine, the default first
    device_help: str  # the same without looking
    open: Callable[[ModelSpec, Say], Any]  # an Engine, or a library's model
    estimate_bytes: Callable[[ModelSpec, Say], int]  # that its weights will take in memory
    peak_bytes: Callable[[ModelSpec, Say], int] | None = None  # while it opens; None: no more
    models: tuple[str, ...] = ()  # that the engine brings; (): any that models/files.py knows
    loads_at_once: bool = False
    #: Precisions in which a row's logits do not depend on how many rows run with it.
    exact: tuple[str, ...] = ()
    demo: bool = False  # stands in for a model: it is offered only on demand, and nobody times it

    def __post_init__(self) -> None:
        """Raises ValueError for a declaration that the app could not show or use."""
        named = NAME.fullmatch(self.name) and self.title and self.precisions
        if not (named and all(self.precisions) and (self.models or not self.demo)):
            raise ValueError(f"invalid engine {self.name!r:.60}")

    @property
    def places(self) -> str:
        """What may stand behind its name in a column, in words."""
        return f"{either(self.precisions)} on {self.device_help}"


def no_trained_draft(model: object) -> DerbyError:
    """The error where a draft would read hidden states that a model does not show, or that it was
    not trained for.
    """
    return DerbyError(
        f"No trained draft fits {model}: choose another draft, such as int4, or another engine."
    )


class Engine(ABC):
    """A loaded model. One copy of the weights serves every session it opens."""

    spec: ModelSpec
    fingerprint: str  # equal ones mean the same weights
    weight_bytes: int  # of memory, on whatever device
    row_bytes: int = 0  # that a token takes in a cache; 0: not known
    tokenizer: Tokenizer
    max_context: int
    guesses: Guesses = "trees"  # what its passes may check, by its self-test
    slow_at_first: Sequence[int] = ()  # widths of passes of which the first one is slow

    @abstractmethod
    def open(self, rows: int = 0, layers: Layers = ()) -> Session:
        """An empty session with room for so many tokens, 0: for as many as come. It shows the
        hidden states of these layers. Raises DerbyError if it cannot.
        """

    def warm_up(self) -> Iterator[None]:
        """Run, one by one, passes of which the first one is slow."""
        if not self.slow_at_first:
            return
        session = self.open()
        for width in self.slow_at_first:
            if width <= self.max_context:
                session.forward([0] * width, chain_parents(width), (0,))
                session.truncate(0)
                yield
        session.close()

    def synchronize(self) -> None:  # noqa: B027 (most devices are done when a pass returns)
        """Wait until the device has finished all queued work."""
