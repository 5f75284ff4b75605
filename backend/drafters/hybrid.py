"""Lookup where it matches, a draft where it does not, and both in one tree where that pays."""

from collections.abc import Sequence
from dataclasses import replace

from backend.decoding.drafter import Drafter
from backend.drafters.draft_length import DraftLength
from backend.drafters.guesses import joined, paths_of, proposal_of
from backend.drafters.network_drafter import NetworkDrafter
from backend.drafters.prompt_lookup import PromptLookup
from backend.types import Outcome, Proposal


class Hybrid(Drafter):
    """Takes what `lookup` found unless `draft` is usually more often right, and where it pays the
    guesses of both in one tree. They share `draft_length`, and both learn from every round. The
    decision is the draft's: in the end for both at once.
    """

    def __init__(
        self, lookup: PromptLookup, draft: NetworkDrafter, draft_length: DraftLength
    ) -> None:
        self.states = draft.states
        self.verifier = draft.verifier
        self._lookup = lookup
        self._draft = draft
        self._draft_length = draft_length
        self._by_lookup = False  # the last proposal had guesses of the lookup
        self._lookups = 0  # rounds that verified such a one

    def prefill(self, context: Sequence[int], computed: int) -> None:
        self._lookup.prefill(context, computed)
        self._draft.prefill(context, computed)

    def rewind(self, length: int) -> None:
        self._lookup.rewind(length)
        self._draft.rewind(length)

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        looked_up = self._lookup.propose(context, budget)
        self._by_lookup = bool(looked_up.tokens)
        found, usual = self._lookup.first_token_acceptance, self._draft.first_token_acceptance
        if self._by_lookup and found >= usual and not self._both_pay(found, usual):
            return looked_up
        drafted = self._draft.propose(context, budget)
        self.decision = self._draft.decision
        if not drafted.tokens:
            return replace(looked_up, calls=drafted.calls)
        if self._by_lookup and self._draft_length.branches:
            return self._with_both(drafted)
        self._by_lookup = False
        return drafted

    def _with_both(self, drafted: Proposal) -> Proposal:
        """One tree of what both guessed; what was drawn at random stays in it, whatever it is."""
        guesses = joined(self._lookup.guesses, self._draft.guesses)
        drawn = frozenset(paths_of(drafted)) if drafted.draws else frozenset()
        made = proposal_of(guesses, self._draft_length, drafted.calls, drawn)
        return replace(made, draws=drafted.draws)

    def _both_pay(self, found: float, usual: float) -> bool:
        """Whether to ask the draft for what may be right where the lookup is not."""
        length = self._draft_length
        return length.branches and length.extends(0, (1 - found) * usual)

    def observe(self, outcome: Outcome) -> None:
        self._draft_length.learn(outcome)
        self._lookup.learn(outcome)
        self._draft.learn(outcome)
        guessed = outcome.proposal.drafted > outcome.proposal.forced
        self._lookups += guessed and self._by_lookup

    def conclude(self) -> None:
        self._draft.conclude()
        self.decision = self._draft.decision
        if self.decision.settings:
            why = f"{self.decision.why}, {self._lookups} of them with prompt lookup"
            self.decision = replace(self.decision, why=why)

    def close(self) -> None:
        self._draft.close()
