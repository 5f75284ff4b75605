"""Lookup where it matches, a draft where it does not."""

from collections.abc import Sequence
from typing import Protocol

from backend.drafters.base import Drafter
from backend.drafters.prompt_lookup import PromptLookup
from backend.types import Outcome, Proposal


class Drafting(Drafter, Protocol):
    @property
    def confidence(self) -> float:
        """How often the first token of a round was right lately."""
        ...


class Hybrid:
    """Takes what `lookup` found unless `draft` is usually more often right. Both share a pace."""

    def __init__(self, lookup: PromptLookup, draft: Drafting) -> None:
        self._lookup = lookup
        self._draft = draft
        self._last: Drafter = lookup

    def prefill(self, context: Sequence[int]) -> None:
        self._lookup.prefill(context)
        self._draft.prefill(context)

    def rewind(self, length: int) -> None:
        self._lookup.rewind(length)
        self._draft.rewind(length)

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        found = self._lookup.propose(context, budget)
        if found.tokens and self._lookup.confidence >= self._draft.confidence:
            self._last = self._lookup
            return found
        drafted = self._draft.propose(context, budget)
        self._last = self._draft if drafted.tokens else self._lookup
        return drafted if drafted.tokens else found

    def observe(self, outcome: Outcome) -> None:
        self._last.observe(outcome)

    def close(self) -> None:
        self._lookup.close()
        self._draft.close()
