"""A loaded model as the rest of the program knows it: an Engine, which opens Sessions."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from backend.engines.session import Session
from backend.errors import DerbyError
from backend.text import Tokenizer
from backend.types import Guesses, Layers, ModelSpec, chain_parents


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
    whatever device; `row_bytes`: what a token takes in a cache, 0: not known; `guesses`: what its
    passes may check, as its self-test showed; `slow_at_first`: how many rows passes have of which
    the first one is slow.
    """

    spec: ModelSpec
    fingerprint: str
    weight_bytes: int
    row_bytes: int = 0
    tokenizer: Tokenizer
    max_context: int
    guesses: Guesses = "trees"
    slow_at_first: Sequence[int] = ()

    @abstractmethod
    def open(self, rows: int = 0, layers: Layers = ()) -> Session:
        """An empty session with room for so many tokens, 0: for as many as come. It shows the
        hidden states of these layers; the last one's need not be asked for. Raises DerbyError if
        it cannot.
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
