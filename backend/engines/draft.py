"""The seam for networks that draft: each predicts, over a cache of its own, what the target writes.

A draft model reads tokens; an EAGLE-3 draft reads the target's hidden states, too. `NetworkDrafter`
(`backend/drafters`) draws tokens of their logits, and is the only one who calls them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from backend.engines.engine import Engine
from backend.engines.session import Session
from backend.types import HiddenStates, Logits, chain_parents

#: Of a network whose text may be of any length, or that sees all of it.
UNLIMITED = 1 << 31


class DraftNetwork(ABC):
    """A network over a cache of one text, its rows by the positions of their tokens. It may read
    the target's hidden states, beside one another in a row. Logits are [1, V'].
    """

    name: str  # where its guesses are shown
    title: str  # in a sentence
    seconds: float  # that a pass takes in a round
    #: Of the target, whose hidden states it reads; (): tokens alone.
    layers: tuple[int, ...] = ()
    #: The target's ids of its logits, int64 [V'], ascending; None: they are the same.
    vocabulary: NDArray[np.int64] | None = None
    positions: int = UNLIMITED  # tokens of the longest text that it can read
    window: int = UNLIMITED  # the last tokens that it sees, and the most of a pass

    @abstractmethod
    def read(
        self, position: int, tokens: Sequence[int], states: HiddenStates | None, *, wanted: bool
    ) -> Logits:
        """Read n tokens, the first of them at `position`; logits behind the last one if they are
        `wanted`, else [0, V'] or any. `states` [n, D] are the target's, each of the token before;
        None: the network has no `layers`, or the token is a guess, whose row is made of what the
        network itself gave last and is no row of the text. Only rows in front of what it sees may
        be left out.
        """

    @abstractmethod
    def rewind(self, length: int) -> None:
        """Forget the rows from position `length` on."""

    @abstractmethod
    def close(self) -> None:
        """Release the cache. Idempotent."""


#: Opens a loaded draft for a new text.
OpenNetwork = Callable[[], DraftNetwork]


class ModelNetwork(DraftNetwork):
    """A whole model as a draft: it reads tokens, so a guess that the target commits is a row of the
    text.
    """

    name = "draft model"

    def __init__(self, session: Session, engine: Engine, seconds: float = 0.0) -> None:
        """`seconds`: of a pass over one row."""
        self._session = session
        self.title = f"draft {engine.spec.name}"
        self.seconds = seconds
        self.positions = engine.max_context

    def read(
        self, position: int, tokens: Sequence[int], states: HiddenStates | None, *, wanted: bool
    ) -> Logits:
        """See DraftNetwork. `position` is where the cache ends."""
        rows = (len(tokens) - 1,) if wanted else ()
        logits = self._session.forward(tokens, chain_parents(len(tokens)), rows)
        self._session.keep(range(len(tokens)))
        return logits

    def rewind(self, length: int) -> None:
        self._session.truncate(length)

    def close(self) -> None:
        """The session is for whoever opened it to close."""
