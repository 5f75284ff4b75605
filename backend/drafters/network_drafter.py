"""Drafting with a network, one token after another: a whole model (speculative decoding, arXiv
2211.17192, 2302.01318) or one that reads the target's hidden states (EAGLE-3, arXiv 2503.01840).

The draft samples with the request's own sampler and noise, which is what maximises acceptance by
the equality rule of verification, or with the request's own sampling and numbers that nobody
shares, which is what rejection sampling wants.
"""

from bisect import bisect
from collections.abc import Sequence, Set
from dataclasses import replace

import numpy as np

from backend.decoding.sampling import Choice, Sampler, penalize
from backend.decoding.seams import NOTHING, Decision, Drafter, KnownStates
from backend.decoding.verification import KEYED, Verifier
from backend.drafters.draft_length import Acceptance, DraftLength, Guess, Path
from backend.drafters.prompt_lookup import PromptLookup
from backend.engines.draft import DraftNetwork
from backend.types import PREFILL_CHUNK, Draw, Logits, Outcome, Proposal

#: Bounds of the distance between a draft's two best scores, by which its guesses are sorted.
GAPS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

#: How often a draft's best token was right, by the gap's class, and how often its second best:
#: measured with the built-in model's trained head on 40 questions of Spec-Bench, and, of the second
#: best, before its fourth training on conversations that it was not trained on.
PRIOR = (0.24, 0.3, 0.37, 0.5, 0.61, 0.76, 0.9, 0.96, 0.99)
SECOND = (0.2, 0.19, 0.15, 0.12, 0.09, 0.06, 0.03, 0.01, 0.01)

#: How often the first guess of a round is right, before anything is known (so high that a dear
#: draft is tried), and the rounds that the running mean of it remembers. In simulated races whose
#: text turned from easy to hard every 96 tokens, the speed-up was 1.07 with so few, 0.93 with more.
FIRST, LATELY = 0.7, 16

#: Forced tokens that a network which reads hidden states is asked behind at most: the target has
#: none of them yet, so each takes a pass that goes on from the network's own.
READ_FORCED = 4


class NetworkDrafter(Drafter):
    """Feeds the network what the target committed since, proposes until the draft length says stop,
    and rewinds it to the text in the next round. Owns the network and closes it.

    The prompt is read while the target reads it, what was committed since in the next round's first
    pass. If the network reads tokens alone, the row of a guess that was committed is a row of the
    text and stays. If it reads hidden states, such a row gives way to one made of the target's.
    """

    def __init__(
        self,
        network: DraftNetwork,
        sampler: Sampler,
        draft_length: DraftLength,
        eos_ids: Set[int] = frozenset(),
        vocab_size: int = 0,
        verifier: Verifier = KEYED,
    ) -> None:
        """`vocab_size`: logits of the target; 0: the network has as many."""
        self.states = KnownStates(network.layers) if network.layers else None
        self.verifier = verifier
        self.by = network.name  # where its guesses are shown
        self._network = network
        self._sampler = sampler
        self._draft_length = draft_length
        self._eos_ids = eos_ids
        self._vocab_size = vocab_size
        # Of the tokens that the network does not know nothing is ever written.
        self._scores = np.full(vocab_size, -np.inf, dtype=np.float32)
        self._read = list[int]()  # tokens of the network's rows; not of guesses from states
        self._same = 0  # how many of them are known to be the text's
        self._acceptance = Acceptance((*PRIOR, *SECOND))
        self._first = Acceptance((FIRST,), LATELY)
        self._guesses: list[Guess] = []  # those of the last round
        self._path: Path = ()  # its chain of best tokens

    @property
    def first_token_acceptance(self) -> float:
        """How often the first token of a round was right lately."""
        return self._first[0]

    def prefill(self, context: Sequence[int], computed: int) -> None:
        if len(context) <= self._network.positions:
            self._rewind_to(context, len(context))
            self._feed(context, computed, wanted=False)

    def rewind(self, length: int) -> None:
        self._same = min(self._same, length)

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        self._guesses, self._path = [], ()
        network, states, length = self._network, self.states, len(context)
        budget = min(budget, network.positions + 1 - length)
        # Behind a token that the target has not computed, hidden states are the network's own.
        known = length if states is None else min(length, states.end + 1)
        if not self._pays(length, budget, length - known):
            return NOTHING
        self._rewind_to(context, length - 1)  # so that a token at least is left to be read
        logits = self._feed(context, known, wanted=True)
        if not len(logits):
            return NOTHING
        for position in range(known, length):
            logits = network.read(position, [context[position]], None, wanted=True)

        calls, chance, path, draws = 1 + length - known, 1.0, Path(), dict[Path, Draw]()
        while True:
            choice = self._choose(logits[0], context, path)
            kind = bisect(GAPS, choice.gap)
            if choice.draw is not None:
                draws[path] = choice.draw
            elif self._draft_length.branches and choice.second >= 0:
                second = len(PRIOR) + kind
                beside = chance * self._acceptance[second]
                self._guesses.append(Guess((*path, choice.second), beside, second, self.by))
            chance *= self._acceptance[kind]
            path = (*path, choice.token)
            self._guesses.append(Guess(path, chance, kind, self.by))
            ended = len(path) == budget or choice.token in self._eos_ids
            if ended or not self._draft_length.extends(len(path), chance):
                break
            if states is None:
                self._read.append(choice.token)
            position = length + len(path) - 1
            logits = network.read(position, [choice.token], None, wanted=True)
            calls += 1
        self._path = path
        if draws:
            # Leaving out a token for what it is would be drawing from another distribution than the
            # one that verification is told of.
            chain = Proposal.chain(path, calls)
            return replace(chain, draws=draws, by=(self.by,) * len(path))
        return self._draft_length.proposal(self._guesses, calls)

    def _pays(self, length: int, budget: int, unknown: int) -> bool:
        """Whether to draft behind a text of this length, whose last so many tokens the target has
        not computed.
        """
        network = self._network
        if length > network.positions and not self.decision.declined:
            declined = f"the {network.title} reads at most {network.positions:,} tokens"
            self.decision = Decision(declined=(declined,))
        if budget <= 0 or unknown > READ_FORCED:
            return False
        if not (pays := self._draft_length.extends(0, self.first_token_acceptance)):
            self._first.forget(0)
        return pays

    def _choose(self, logits: Logits, context: Sequence[int], path: Path) -> Choice:
        """The sampler's choice from logits [V'] behind the context and the path."""
        if (ids := self._network.vocabulary) is not None:
            self._scores[ids] = logits
            logits = self._scores
        if (penalty := self._sampler.sampling.repetition_penalty) != 1:
            logits = logits.copy()
            penalize(logits, [*context, *path], penalty)
        # Vocabularies of one tokenizer may be padded to different widths.
        return self._sampler.choose(logits[: self._vocab_size or None], len(context) + len(path))

    def _rewind_to(self, context: Sequence[int], most: int) -> None:
        """Rewind the network to its rows of the text, of the first `most` tokens at most."""
        end = min(len(self._read), most)
        self._same = min(self._same, end)
        while self._same < end and self._read[self._same] == context[self._same]:
            self._same += 1
        self._network.rewind(self._same)
        del self._read[self._same :]

    def _feed(self, context: Sequence[int], end: int, *, wanted: bool) -> Logits:
        """Feed the text before position `end` that the network has not read and can see; the logits
        behind it, [0, V'] if they are not `wanted` or nothing was left to feed.
        """
        network, states = self._network, self.states
        start = max(len(self._read), len(context) - network.window)
        if states is not None:
            start, end = max(start, states.start + 1, 1), min(end, states.end + 1)
        logits: Logits = np.zeros((0, 0), dtype=np.float32)
        rows = min(PREFILL_CHUNK, network.window)
        for at in range(start, end, rows):
            tokens = context[at : min(at + rows, end)]
            read = states.between(at - 1, at - 1 + len(tokens)) if states else None
            last = wanted and at + len(tokens) == end
            logits = network.read(at, tokens, read, wanted=last)
        self._read += context[len(self._read) : end]
        return logits

    def observe(self, outcome: Outcome) -> None:
        self._draft_length.learn(outcome)
        self.learn(outcome)

    def learn(self, outcome: Outcome) -> None:
        """See which of the last guesses were right, verified or not."""
        self._acceptance.learn_all(self._guesses, outcome.decided)
        if self._path and outcome.decided:
            self._first.learn(0, right=self._path[0] == outcome.decided[0])
        self._guesses, self._path = [], ()

    def conclude(self) -> None:
        self.decision = self._draft_length.summary().beside(self.decision.declined)

    def close(self) -> None:
        self._network.close()


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
