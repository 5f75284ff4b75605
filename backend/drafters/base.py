"""The seam for whatever suggests tokens, and the drafter that suggests none."""

from collections.abc import Sequence
from typing import Protocol

from backend.types import Outcome, Proposal

NOTHING = Proposal()


class Drafter(Protocol):
    def prefill(self, tokens: Sequence[int]) -> None:
        """Take the next chunk of the prompt, as the target does."""
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

    def prefill(self, tokens: Sequence[int]) -> None: ...

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        return NOTHING

    def observe(self, outcome: Outcome) -> None: ...

    def close(self) -> None: ...
