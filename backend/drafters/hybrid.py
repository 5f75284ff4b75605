"""A proposer without weights beside a draft: whichever earns more, and both in one tree where that
pays.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Protocol

from backend.decoding.drafter import Drafter
from backend.drafters.draft_length import DraftLength
from backend.drafters.guesses import Guess, joined, paths_of, proposal_of
from backend.drafters.network_drafter import NetworkDrafter
from backend.types import Outcome, Proposal


class Proposer(Protocol):
    """What proposes without a network: prompt lookup, token recycling.

    `by`: what it is called where its guesses are shown. `guesses`: those of the last round.
    `first_token_acceptance`: the chance of the best of them that come next.
    """

    by: str
    guesses: Sequence[Guess]
    first_token_acceptance: float

    def prefill(self, context: Sequence[int], computed: int) -> None:
        """See Drafter."""

    def rewind(self, length: int) -> None:
        """See Drafter."""

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        """See Drafter."""
        ...

    def learn(self, outcome: Outcome) -> None:
        """See which of the last guesses were right, verified or not."""


class Hybrid(Drafter):
    """Takes what `proposer` found unless a round of `draft` is expected to earn more tokens per
    second, and where it pays the guesses of both in one tree. They share `draft_length`, and both
    learn from every round. The decision is the draft's: in the end for both at once, and whose
    guesses were accepted at what cost.
    """

    def __init__(
        self, proposer: Proposer, draft: NetworkDrafter, draft_length: DraftLength
    ) -> None:
        self.states = draft.states
        self.verifier = draft.verifier
        self._proposer = proposer
        self._draft = draft
        self._draft_length = draft_length
        self._offered: Counter[str] = Counter()  # verified guesses by who made them
        self._accepted: Counter[str] = Counter()
        self._found = 0.0  # seconds of the proposer
        self._drafted = 0.0  # and of the draft
        self._rounds = self._asked = 0  # in which they were asked

    def prefill(self, context: Sequence[int], computed: int) -> None:
        self._proposer.prefill(context, computed)
        self._draft.prefill(context, computed)

    def rewind(self, length: int) -> None:
        self._proposer.rewind(length)
        self._draft.rewind(length)

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        began = perf_counter()
        found = self._proposer.propose(context, budget)
        self._found += perf_counter() - began
        self._rounds += 1
        if found.tokens and not self._draft_pays():
            return found
        began = perf_counter()
        drafted = self._draft.propose(context, budget)
        if drafted.calls:
            self._drafted += perf_counter() - began
            self._asked += 1
        self.decision = self._draft.decision
        if not drafted.tokens:
            return replace(found, calls=drafted.calls)
        if found.tokens and self._draft_length.branches:
            return self._with_both(drafted)
        return drafted

    def _draft_pays(self) -> bool:
        """Whether the draft is to be asked, too: its own round would earn more, or its guesses pay
        for the case that the proposer is wrong.
        """
        length, usual = self._draft_length, self._draft.first_token_acceptance
        chances = sorted((guess.path_probability for guess in self._proposer.guesses), reverse=True)
        chain = [usual**place for place in range(1, length.most + 1)]
        if length.gain(chain, calls=1) > length.gain(chances):
            return True
        left = 1 - self._proposer.first_token_acceptance
        return length.branches and length.extends(0, left * usual)

    def _with_both(self, drafted: Proposal) -> Proposal:
        """One tree of what both guessed; what was drawn at random stays in it, whatever it is."""
        guesses = joined(self._proposer.guesses, self._draft.guesses)
        drawn = frozenset(paths_of(drafted)) if drafted.draws else frozenset()
        made = proposal_of(guesses, self._draft_length, drafted.calls, drawn)
        return replace(made, draws=drafted.draws)

    def observe(self, outcome: Outcome) -> None:
        self._draft_length.learn(outcome)
        self._proposer.learn(outcome)
        self._draft.learn(outcome)
        proposal, text = outcome.proposal, outcome.tokens
        for path, by in zip(paths_of(proposal), proposal.by, strict=False):
            if len(path) > proposal.forced:
                self._offered[by] += 1
                self._accepted[by] += path == text[: len(path)]

    def conclude(self) -> None:
        self._draft.conclude()
        self.decision = self._draft.decision
        if self.decision.settings:
            told = [self.decision.why, *self._told()]
            self.decision = replace(self.decision, why="; ".join(told))

    def _told(self) -> list[str]:
        """Whose guesses were accepted, and what asking for them took."""
        accepted = [f"{by} {self._accepted[by]} of {count}" for by, count in self._offered.items()]
        if not accepted:
            return []
        cost = f"{self._proposer.by} takes {_each(self._found, self._rounds)} a pass"
        if self._asked:
            cost += f", the {self._draft.by} {_each(self._drafted, self._asked)}"
            cost += f" in {self._asked} of {self._rounds} passes"
        return [f"accepted guesses: {', '.join(accepted)}", cost]

    def close(self) -> None:
        self._draft.close()


def _each(seconds: float, rounds: int) -> str:
    return f"{seconds / max(rounds, 1) * 1e3:.2g} ms"
