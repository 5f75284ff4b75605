"""Drafting with a network, one token after another: a whole model (speculative decoding, arXiv
2211.17192, 2302.01318) or a head that reads the target's hidden states (EAGLE, arXiv 2401.15077).

The draft samples with the request's own sampler and noise, which is what maximises acceptance by
the equality rule of verification, or with the request's own sampling and numbers that nobody
shares, which is what rejection sampling wants.
"""

from collections.abc import Sequence, Set

import numpy as np

from backend.decoding.drafter import NOTHING, UNDECIDED, Decision, Drafter
from backend.decoding.hidden_states import KnownStates
from backend.decoding.sampling import DraftSampler, Pair
from backend.decoding.verification import KEYED, Verifier
from backend.drafters.acceptance import Experience
from backend.drafters.draft_length import DraftLength
from backend.drafters.guesses import Guess
from backend.engines.draft import NO_STATES, DraftNetwork
from backend.types import PREFILL_CHUNK, Logits, Outcome, Proposal

#: Forced tokens that a network which reads hidden states is asked behind at most: the target has
#: none of them yet, so each takes a pass that goes on from the network's own.
READ_FORCED = 4


class NetworkDrafter(Drafter):
    """Feeds the network what the target committed since, proposes until the draft length says stop,
    and forgets guesses that were not committed. Owns the network and closes it.

    The prompt is read while the target reads it. What was committed since is read in the next
    round's first pass, never in an extra one. If the network reads tokens alone, the row of a guess
    that was committed is a row of the text and stays. If it reads hidden states, the row of a guess
    was made of its own, and gives way to one made of the target's.
    """

    def __init__(
        self,
        network: DraftNetwork,
        sampler: DraftSampler,
        draft_length: DraftLength,
        eos_ids: Set[int] = frozenset(),
        vocab_size: int = 0,
        verifier: Verifier = KEYED,
        experience: Experience | None = None,
    ) -> None:
        """`vocab_size`: logits of the target; 0: the network has as many. `experience`: with the
        loaded draft; None: there is none yet.
        """
        self.states = KnownStates(network.layers) if network.layers else None
        self.verifier = verifier
        self.decision = UNDECIDED
        self.by = network.name  # where its guesses are shown
        self._network = network
        self._sampler = sampler
        self._draft_length = draft_length
        self._eos_ids = eos_ids
        self._vocab_size = vocab_size
        self._held = list(network.held)  # by position: tokens of the network's rows
        self._sound = len(self._held)  # how many of them may be rows of the text
        self._agreed = 0  # how many are known to be the text's
        self._declined: tuple[str, ...] = ()
        self._calibration = (experience or Experience()).begin(network.name)

    @property
    def first_token_acceptance(self) -> float:
        """How often the first token of a round was right lately."""
        return self._calibration.first_token_acceptance

    @property
    def guesses(self) -> Sequence[Guess]:
        """Those of the last round."""
        return self._calibration.guesses

    def prefill(self, context: Sequence[int], computed: int) -> None:
        if len(context) <= self._network.positions:
            self._settle(context, len(context))
            self._read(context, computed, wanted=False)

    def rewind(self, length: int) -> None:
        self._agreed = min(self._agreed, length)

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        self._draft_length.begin(len(context))
        budget = min(budget, self._room(len(context)))
        known = self._known(len(context))
        unread = len(context) - known
        if budget <= 0 or unread > READ_FORCED:
            return NOTHING
        if not self._calibration.begin(self._draft_length):
            return NOTHING
        self._settle(context, len(context) - 1)  # so that a token at least is left to be read
        logits = self._read(context, known, wanted=True)
        if not len(logits):
            return NOTHING
        for position in range(known, len(context)):
            logits = self._guess(position, context[position])
        calls = unread
        while True:
            calls += 1
            pair = self._choose(logits[0], len(context) + len(self._calibration.path))
            self._calibration.add(pair, second=self._draft_length.branches)
            if self._ends(budget):
                return self._calibration.proposal(self._draft_length, calls)
            path = self._calibration.path
            logits = self._guess(len(context) + len(path) - 1, path[-1])

    def _ends(self, budget: int) -> bool:
        path, chance = self._calibration.path, self._calibration.path_probability
        ended = len(path) == budget or path[-1] in self._eos_ids
        return ended or not self._draft_length.extends(len(path), chance)

    def _room(self, length: int) -> int:
        """Tokens that the network's positions let it draft behind a text of this length."""
        limit, title = self._network.positions, self._network.title
        if length > limit and not self._declined:
            self._declined = (
                f"the {title} reads at most {limit:,} tokens and drafts nothing after that",
            )
            self.decision = Decision(declined=self._declined)
        return limit + 1 - length

    def _known(self, length: int) -> int:
        """Tokens of a text of this length that can be read: one that the target has not computed
        only by a network that reads no hidden states.
        """
        return length if self.states is None else min(length, self.states.end + 1)

    def _choose(self, logits: Logits, position: int) -> Pair:
        """The sampler's choice from logits [V'] by the text's own ids."""
        ids = self._network.vocabulary
        if ids is None:
            # Vocabularies of one tokenizer may be padded to different widths.
            return self._sampler.choose_two(logits[: self._vocab_size or None], position)
        pair = self._sampler.choose_two(logits, position, ids, self._vocab_size)
        second = int(ids[pair.second]) if pair.second >= 0 else -1
        return pair._replace(token=int(ids[pair.token]), second=second)

    def _settle(self, context: Sequence[int], most: int) -> None:
        """Forget the network's rows that are not those of the text's first `most` tokens."""
        end = min(self._sound, most)
        self._agreed = min(self._agreed, end)
        while self._agreed < end and self._held[self._agreed] == context[self._agreed]:
            self._agreed += 1
        if self._agreed < len(self._held):
            self._agreed = self._network.rewind(self._agreed)
            del self._held[self._agreed :]
            self._sound = self._agreed

    def _read(self, context: Sequence[int], end: int, *, wanted: bool) -> Logits:
        """Feed the text before position `end` that the network has not read and can see; the logits
        behind it, [0, V'] if they are not `wanted` or nothing was left to feed.
        """
        network, states = self._network, self.states
        start = max(len(self._held), len(context) - network.window)
        if states is not None:
            start, end = max(start, states.start + 1, 1), min(end, states.end + 1)
        logits: Logits = np.zeros((0, 0), dtype=np.float32)
        rows = min(PREFILL_CHUNK, network.window)
        for at in range(start, end, rows):
            tokens = context[at : min(at + rows, end)]
            read = NO_STATES if states is None else states.since(at - 1)[: len(tokens)]
            last = wanted and at + len(tokens) == end
            logits = network.read(at, tokens, read, wanted=last)
        if start < end:
            self._held += context[len(self._held) : end]
            self._sound = len(self._held)
        return logits

    def _guess(self, position: int, token: int) -> Logits:
        self._held.append(token)
        if self.states is None:
            self._sound = len(self._held)
        return self._network.guess(position, token)

    def observe(self, outcome: Outcome) -> None:
        self._draft_length.learn(outcome)
        self.learn(outcome)

    def learn(self, outcome: Outcome) -> None:
        """See which of the last guesses were right, verified or not."""
        self._calibration.learn(outcome)

    def conclude(self) -> None:
        self.decision = self._draft_length.summary().beside(self._declined)

    def close(self) -> None:
        self._network.close()
