"""The seam for networks that draft: each predicts, over a cache of its own, what the target writes.

A draft model reads tokens; a trained head reads the target's hidden states, too. `NetworkDrafter`
(`backend/drafters`) draws tokens of their logits, and is the only one who calls them.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from backend.engines.base import Engine, Session
from backend.types import HiddenStates, Logits, chain_parents

#: Of a network whose text may be of any length, or that sees all of it.
UNLIMITED = 1 << 31


class DraftNetwork(Protocol):
    """A network over a cache of one text, its rows by the positions of their tokens.

    It may read the target's hidden states: of the layers that `layers` names, -1 being behind the
    last norm, beside one another in a row. It may know fewer tokens than the target (`vocabulary`).
    Logits are [b, V']: of the next b tokens, of which a network that drafts in blocks gives several
    in one pass, and those of today one.
    """

    @property
    def name(self) -> str:
        """What it is called where its guesses are shown."""
        ...

    @property
    def title(self) -> str:
        """What it is called in a sentence."""
        ...

    @property
    def seconds(self) -> float:
        """What a pass takes in a round."""
        ...

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of the target whose hidden states it reads; () if it reads tokens alone."""
        ...

    @property
    def vocabulary(self) -> NDArray[np.int64] | None:
        """The target's ids of its logits, int64 [V'] ascending; None: they are the same."""
        ...

    @property
    def positions(self) -> int:
        """Tokens of the longest text that it can read."""
        ...

    @property
    def window(self) -> int:
        """So many of the last tokens are all that it sees, and that it takes in one pass."""
        ...

    @property
    def held(self) -> Sequence[int]:
        """The tokens that it had read already when it was opened."""
        ...

    def read(
        self, position: int, tokens: Sequence[int], states: HiddenStates, *, wanted: bool
    ) -> Logits:
        """Read n tokens of the text, the first of them at `position`; logits behind the last one if
        they are `wanted`, else [0, V'].

        `states` [n, D] are the target's, each of the token before; of a network that reads none
        they have no rows. Rows may be left out only in front of what it sees.
        """
        ...

    def guess(self, position: int, token: int) -> Logits:
        """The logits behind a guess at `position`: its row is made of what the network itself
        predicted, in place of the target's hidden states, and is no row of the text.
        """
        ...

    def rewind(self, length: int) -> None:
        """Forget the rows from position `length` on."""
        ...

    def close(self) -> None: ...


class ModelNetwork:
    """A whole model as a draft: it reads tokens, so a guess that the target commits is a row of the
    text. Owns its session.
    """

    name = "draft model"
    layers = ()
    vocabulary = None
    window = UNLIMITED

    def __init__(
        self, session: Session, engine: Engine, held: Sequence[int] = (), seconds: float = 0.0
    ) -> None:
        """`held`: the tokens that the session holds, kept up to date from then on. `seconds`: of a
        pass over one row.
        """
        self._session = session
        self.title = f"draft {engine.spec.name}"
        self.held = list(held)
        self.seconds = seconds
        self.positions = engine.capabilities.max_context

    def read(
        self, position: int, tokens: Sequence[int], states: HiddenStates, *, wanted: bool
    ) -> Logits:
        """See DraftNetwork. `position` is where the cache ends."""
        rows = (len(tokens) - 1,) if wanted else ()
        logits = self._session.forward(tokens, chain_parents(len(tokens)), rows)
        self._session.keep(range(len(tokens)))
        self.held += tokens
        return logits

    def guess(self, position: int, token: int) -> Logits:
        return self.read(position, [token], NO_STATES, wanted=True)

    def rewind(self, length: int) -> None:
        self._session.truncate(length)
        del self.held[length:]

    def close(self) -> None:
        self._session.close(self.held)


#: What a network that reads tokens alone is given.
NO_STATES: HiddenStates = np.zeros((0, 0), dtype=np.float32)
