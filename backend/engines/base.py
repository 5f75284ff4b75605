"""A loaded model as the rest of the program knows it: an Engine, and the Sessions that it opens."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from backend.engines.cache import Session, Store
from backend.errors import DerbyError
from backend.text import Tokenizer
from backend.types import LAST_LAYER, Capabilities, Layers, ModelSpec, chain_parents


def no_trained_draft(model: object) -> DerbyError:
    """The error where a draft would read hidden states that a model does not show, or that it was
    not trained for.
    """
    return DerbyError(
        f"No trained draft fits {model}: choose another draft, such as int4, or another engine."
    )


class Engine(ABC):
    """A loaded model. One copy of the weights serves every session it opens.

    `fingerprint`: equal ones mean the same weights; `weight_bytes`: the memory that they take, on
    whatever device; `row_bytes`: what a token takes in a cache, 0: not known; `slow_at_first`: how
    many rows passes have of which the first one is slow.
    """

    spec: ModelSpec
    fingerprint: str
    weight_bytes: int
    row_bytes: int = 0
    tokenizer: Tokenizer
    capabilities: Capabilities
    slow_at_first: Sequence[int] = ()

    @abstractmethod
    def store(self) -> Store:
        """An empty cache."""

    def layer_store(self, layers: Layers) -> Store:
        """An empty cache that shows the hidden states in front of these layers. Raises DerbyError
        where that cannot be.
        """
        raise no_trained_draft(self.spec)

    def open(self, layers: Layers = ()) -> Session:
        """An empty session that shows the hidden states of these layers, too. Raises DerbyError if
        it cannot. The last layer's need not be asked for.
        """
        inner = tuple(layer for layer in layers if layer not in LAST_LAYER)
        return Session(self.layer_store(inner) if inner else self.store(), self.capabilities)

    def warm_up(self) -> Iterator[None]:
        """Run, one by one, passes of which the first one is slow."""
        if not self.slow_at_first:
            return
        session = self.open()
        for width in self.slow_at_first:
            if width <= self.capabilities.max_context:
                session.forward([0] * width, chain_parents(width), (0,))
                session.truncate(0)
                yield
        session.close()

    def synchronize(self) -> None:  # noqa: B027 (most devices are done when a pass returns)
        """Wait until the device has finished all queued work."""
