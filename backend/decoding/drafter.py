"""The seam for whatever suggests tokens, and the drafter that suggests none."""

from collections.abc import Sequence
from typing import Protocol

from backend.types import Outcome, Proposal

NOTHING = Proposal()


class Drafter(Protocol):
    def prefill(self, context: Sequence[int]) -> None:
        """Get ready for a text that begins so; the target computes it too, as far as this."""
        ...

    def rewind(self, length: int) -> None:
        """Learn that of the context only the first `length` tokens still stand."""
        ...

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        """Suggest what follows `context`, at most `budget` tokens deep.

        `context` is every committed token, prompt included; its last one is the root.
        """
        ...

    def observe(self, outcome: Outcome) -> None:
        """Learn what became of the proposal. Called once per decode step."""
        ...

    def close(self) -> None: ...


class NullDrafter:
    """Suggests nothing: plain autoregressive decoding."""

    def prefill(self, context: Sequence[int]) -> None: ...

    def rewind(self, length: int) -> None: ...

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        return NOTHING

    def observe(self, outcome: Outcome) -> None: ...

    def close(self) -> None: ...
