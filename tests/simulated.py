"""A fake engine whose passes take what a curve says, on a clock that moves by nothing else."""

from collections.abc import Callable, Sequence

from backend.costs import CONTEXT
from backend.engines.fake import FakeEngine
from backend.engines.session import Session
from backend.types import Layers, Logits


class Ticking(FakeEngine):
    """A fake whose passes take what `seconds` says of rows and tokens beyond those that costs are
    quoted at, on a clock of its own: `now`.
    """

    def __init__(self, seconds: Callable[[int, int], float]) -> None:
        super().__init__()
        self.now, self._seconds = 0.0, seconds

    def open(self, rows: int = 0, layers: Layers = ()) -> Session:
        session = super().open(rows, layers)
        forward = session.forward

        def ticking(tokens: Sequence[int], parents: Sequence[int], rows: Sequence[int]) -> Logits:
            self.now += self._seconds(len(tokens), session.length - CONTEXT)
            return forward(tokens, parents, rows)

        session.forward = ticking  # type: ignore[method-assign]
        return session
