"""Prompt lookup before a draft network: its guess where that pays, else the network's."""

from collections.abc import Sequence
from dataclasses import replace

from backend.decoding.drafter import Drafter
from backend.drafters.draft_length import DraftLength
from backend.drafters.network_drafter import NetworkDrafter
from backend.drafters.prompt_lookup import PromptLookup
from backend.types import Outcome, Proposal


class Hybrid(Drafter):
    """Takes the guesses of `lookup` unless a round of `draft` is expected to earn more. They share
    `draft_length`, and both learn from every round.
    """

    def __init__(
        self, lookup: PromptLookup, draft: NetworkDrafter, draft_length: DraftLength
    ) -> None:
        self.states = draft.states
        self.verifier = draft.verifier
        self._lookup = lookup
        self._draft = draft
        self._draft_length = draft_length

    def prefill(self, context: Sequence[int], computed: int) -> None:
        self._lookup.prefill(context, computed)
        self._draft.prefill(context, computed)

    def rewind(self, length: int) -> None:
        self._lookup.rewind(length)
        self._draft.rewind(length)

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        copied = self._lookup.propose(context, budget)
        if copied.tokens:
            length, usual = self._draft_length, self._draft.first_token_acceptance
            chances = sorted((guess.chance for guess in self._lookup.guesses), reverse=True)
            chain = [usual**place for place in range(1, length.most + 1)]
            if length.best(chain, calls=1) <= length.best(chances):
                return copied
        drafted = self._draft.propose(context, budget)
        self.decision = self._draft.decision
        return drafted if drafted.tokens else replace(copied, calls=drafted.calls)

    def observe(self, outcome: Outcome) -> None:
        self._draft_length.learn(outcome)
        self._lookup.learn(outcome)
        self._draft.learn(outcome)

    def conclude(self) -> None:
        self._draft.conclude()
        self.decision = self._draft.decision

    def close(self) -> None:
        self._draft.close()
