"""Drafting with a trained head that reads the target's hidden states, which EAGLE (arXiv
2401.15077), whose method this follows, calls features.
"""

from collections.abc import Sequence, Set
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from backend.decoding.drafter import NOTHING, NullDrafter
from backend.decoding.sampling import DraftSampler, Pair
from backend.drafters.acceptance import Calibration
from backend.drafters.draft_length import DraftLength
from backend.drafters.guesses import Guess
from backend.engines.hidden_states import HiddenStateSession
from backend.heads.base import Floats, Head, Predicted
from backend.types import PREFILL_CHUNK, Outcome, Proposal

#: Forced tokens that a draft is read behind at most: each takes a pass of the head.
READ_FORCED = 4

#: Added to the attention score of a row that must not be seen.
HIDDEN = np.float32(-1e9)


class Displaced(NamedTuple):
    """The row that stood in a slot of the ring before a guess took the slot: its position, -1 for
    none, and what the ring gave of it.
    """

    slot: int
    position: int
    row: Any


class TrainedHead(NullDrafter):
    """Drafts a chain. The head's own cache is a ring of as many rows as it attends to, the row of
    position p in slot p modulo their number.

    A row stands for a token and the target's feature of the token before it. Those of the prompt
    are made while it is read; what the target has computed since the last round is fed in the next
    round's first pass, never by an extra one. Rows made of the head's own guesses are taken out
    then, and what they had displaced is put back.
    """

    def __init__(
        self,
        head: Head,
        target: HiddenStateSession,
        sampler: DraftSampler,
        draft_length: DraftLength,
        eos_ids: Set[int],
        vocab_size: int,
    ) -> None:
        self._head = head
        self._target = target
        self._sampler = sampler
        self._draft_length = draft_length
        self._eos_ids = eos_ids
        self._vocab_size = vocab_size
        self._ring = head.open()
        self._positions = np.full(head.shape.window, -1, dtype=np.int64)  # of the ring's rows
        self._displaced: list[Displaced] = []  # by the last round's guesses, in their order
        self._fed = 0  # rows of tokens before this position are in the ring
        self._calibration = Calibration("trained draft")

    @property
    def first_token_acceptance(self) -> float:
        """How often the first token of a round was right lately."""
        return self._calibration.first_token_acceptance

    @property
    def guesses(self) -> Sequence[Guess]:
        """Those of the last round."""
        return self._calibration.guesses

    def prefill(self, context: Sequence[int], computed: int) -> None:
        """Feed what is computed of the text but its last token, which the first round feeds."""
        self._feed(context, min(computed, len(context) - 1))

    def rewind(self, length: int) -> None:
        self._forget(length)

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        self._draft_length.begin(len(context))
        known = self._target.length + 1  # behind it are forced tokens
        if budget <= 0 or len(context) - known > READ_FORCED:
            return NOTHING
        if not self._calibration.begin(self._draft_length):
            return NOTHING
        last = self._feed(context, min(known, len(context)))
        if last is None:
            return NOTHING
        for position in range(known, len(context)):
            last = self._run_guess(last.feature, context[position], position)
        forced, drafted = max(0, len(context) - known), 0
        while True:
            position = len(context) + drafted
            pair = self._choose(last, position)
            self._calibration.add(pair, second=self._draft_length.branches)
            drafted += 1
            ended = drafted == budget or pair.token in self._eos_ids
            if ended or not self._draft_length.extends(drafted, self._calibration.path_probability):
                return self._calibration.proposal(self._draft_length, forced + drafted)
            last = self._run_guess(last.feature, pair.token, position)

    def _choose(self, done: Predicted, position: int) -> Pair:
        """The sampler's choice among the tokens that the head knows, by the text's own ids."""
        known = self._head.vocabulary
        pair = self._sampler.choose_two(done.logits, position, known, self._vocab_size)
        second = int(known[pair.second]) if pair.second >= 0 else -1
        return pair._replace(token=int(known[pair.token]), second=second)

    def _feed(self, context: Sequence[int], end: int) -> Predicted | None:
        """Feed the text before position `end`, as far as the target's features of it are known;
        the pass over its last token, or None if there is none to make.
        """
        self._take_back_guesses()
        window = self._head.shape.window
        start = max(self._fed, len(context) - window, self._target.known_from + 1, 1)
        if not start < end <= self._target.length + 1:
            return None
        features = self._target.hidden_states_from(start - 1)
        rows = min(PREFILL_CHUNK, window)
        last = None
        for at in range(start, end, rows):
            chunk = context[at : min(at + rows, end)]
            last = self._run(features[at - start : at - start + len(chunk)], chunk, at)
        self._fed = end
        return last

    def _run_guess(self, feature: Floats, token: int, position: int) -> Predicted:
        """Run a row of the head's own, remembering what it displaces."""
        slot = position % self._head.shape.window
        before = int(self._positions[slot])
        self._displaced.append(Displaced(slot, before, self._ring.take(slot)))
        return self._run(feature[None], [token], position)

    def _run(self, features: Floats, tokens: Sequence[int], position: int) -> Predicted:
        """Run rows of these tokens from `position` on, and put them into the ring."""
        n, window = len(tokens), self._head.shape.window
        positions = np.arange(position, position + n)
        bias = np.full((n, window + n), HIDDEN)
        near = self._positions > positions[:, None] - window
        bias[:, :window][near & (self._positions >= 0)] = 0
        bias[:, window:][np.tri(n, dtype=bool)] = 0
        ids: NDArray[np.int64] = np.array(tokens, dtype=np.int64)
        done = self._ring.run(np.ascontiguousarray(features), ids, positions, bias)
        self._positions[positions % window] = positions
        return done

    def _take_back_guesses(self) -> None:
        """Put back what the last round's guesses displaced: they were never the text's rows."""
        for row in reversed(self._displaced):
            self._ring.put(row.slot, row.row)
            self._positions[row.slot] = row.position
        self._displaced.clear()

    def _forget(self, length: int) -> None:
        """Drop the rows of tokens from position `length` on."""
        self._take_back_guesses()
        self._positions[self._positions >= length] = -1
        self._fed = min(self._fed, length)

    def observe(self, outcome: Outcome) -> None:
        self._draft_length.learn(outcome)
        self.learn(outcome)

    def close(self) -> None:
        self._ring.close()

    def conclude(self) -> None:
        self.decision = self._draft_length.summary()

    def learn(self, outcome: Outcome) -> None:
        """See which of the last guesses were right, verified or not."""
        self._calibration.learn(outcome)
