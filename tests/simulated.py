"""A fake engine whose passes take what a curve says, on a clock that moves by nothing else."""

from collections.abc import Callable

from backend.costs.pass_costs import CONTEXT
from backend.engines.cache import Pass, Store
from backend.engines.fake import FakeEngine
from backend.types import Logits


class Ticking(FakeEngine):
    """A fake whose passes take what `seconds` says of rows and tokens beyond those that costs are
    quoted at, on a clock of its own: `now`.
    """

    def __init__(self, seconds: Callable[[int, int], float]) -> None:
        super().__init__()
        self.now, self._seconds = 0.0, seconds

    def store(self) -> Store:
        store = super().store()
        run = store.run

        def ticking(work: Pass) -> Logits:
            behind = int(work.positions[0]) - CONTEXT
            self.now += self._seconds(len(work.tokens), behind)
            return run(work)

        store.run = ticking  # type: ignore[method-assign]
        return store
