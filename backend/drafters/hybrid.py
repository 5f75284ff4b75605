"""Lookup where it matches, a draft where it does not."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from backend.decoding.drafter import Decision, Drafter
from backend.drafters.draft_length import DraftLength
from backend.drafters.prompt_lookup import PromptLookup
from backend.types import Outcome, Proposal


class Drafting(Drafter, Protocol):
    @property
    def confidence(self) -> float:
        """How often the first token of a round was right lately."""
        ...

    def learn(self, outcome: Outcome) -> None:
        """See which of the last guesses were right, verified or not."""
        ...


class Hybrid:
    """Takes what `lookup` found unless `draft` is usually more often right. They share
    `draft_length`, and both learn from every round, whoever was believed.
    """

    def __init__(self, lookup: PromptLookup, draft: Drafting, draft_length: DraftLength) -> None:
        self._lookup = lookup
        self._draft = draft
        self._draft_length = draft_length

    @property
    def decision(self) -> Decision:
        return self._draft.decision

    def conclude(self) -> None:
        self._draft.conclude()

    def prefill(self, context: Sequence[int], computed: int) -> None:
        self._lookup.prefill(context, computed)
        self._draft.prefill(context, computed)

    def rewind(self, length: int) -> None:
        self._lookup.rewind(length)
        self._draft.rewind(length)

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        found = self._lookup.propose(context, budget)
        if found.tokens and self._lookup.confidence >= self._draft.confidence:
            return found
        drafted = self._draft.propose(context, budget)
        return drafted if drafted.tokens else replace(found, calls=drafted.calls)

    def observe(self, outcome: Outcome) -> None:
        self._draft_length.learn(outcome)
        self._lookup.learn(outcome)
        self._draft.learn(outcome)

    def close(self) -> None:
        self._lookup.close()
        self._draft.close()
