"""Drafting with a trained head that reads the target's features (after EAGLE, arXiv 2401.15077)."""

from collections.abc import Sequence, Set

import numpy as np
from numpy.typing import NDArray

from backend.decoding.drafter import NOTHING, NullDrafter
from backend.decoding.sampling import Pair, Sampler
from backend.drafters.acceptance import Calibration
from backend.drafters.draft_length import DraftLength
from backend.drafters.guesses import proposal_of
from backend.engines.hidden_states import HiddenStateSession
from backend.heads.base import Floats, Head, HeadPass
from backend.types import PREFILL_CHUNK, Outcome, Proposal

HIDDEN = np.float32(-1e9)


class TrainedHead(NullDrafter):
    """Drafts a chain. The head's own cache is a ring of as many rows as it attends to.

    A row stands for a token and the target's feature of the token before it. What the target has
    computed since the last round is fed in the next round's first pass, never by an extra one;
    rows made of the head's own guesses are forgotten then.
    """

    def __init__(
        self,
        head: Head,
        target: HiddenStateSession,
        sampler: Sampler,
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
        shape = head.shape
        size = (shape.layers, shape.kv_heads, shape.window, shape.head_dim)
        self._keys = np.zeros(size, dtype=np.float32)
        self._values = np.zeros(size, dtype=np.float32)
        self._positions = np.full(shape.window, -1, dtype=np.int64)  # of the ring's rows
        self._next = 0  # where the ring's next row goes
        self._fed = 0  # rows of tokens before this position are in the ring
        self._confidence = Calibration()

    @property
    def confidence(self) -> float:
        """How often the first token of a round was right lately."""
        return self._confidence.usual

    def rewind(self, length: int) -> None:
        self._forget(length)

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        self._draft_length.begin(len(context))
        if budget <= 0 or not self._confidence.asks(self._draft_length):
            return NOTHING
        last = self._catch_up(context)
        if last is None:
            return NOTHING
        drafted = 0
        while True:
            position = len(context) + drafted
            pair = self._choose(last, position)
            self._confidence.add(pair, second=self._draft_length.branches)
            drafted += 1
            ended = drafted == budget or pair.token in self._eos_ids
            if ended or not self._draft_length.extends(drafted, self._confidence.path_probability):
                return proposal_of(self._confidence.guesses, self._draft_length, drafted)
            last = self._run(last.feature[None], [pair.token], position)

    def _choose(self, done: HeadPass, position: int) -> Pair:
        """The request's own choice among the tokens that the head knows, with its noise."""
        known = self._head.vocabulary
        pair = self._sampler.choose_two(done.logits, position, known, self._vocab_size)
        return Pair(int(known[pair.token]), pair.gap, int(known[pair.second]))

    def _catch_up(self, context: Sequence[int]) -> HeadPass | None:
        """Feed the text up to its last token; None if the target's features of it are unknown."""
        self._forget(self._fed)
        window = self._head.shape.window
        start = max(self._fed, len(context) - window, self._target.known_from + 1, 1)
        if start >= len(context):
            return None
        features = self._target.hidden_states_from(start - 1)
        last = None
        for at in range(start, len(context), PREFILL_CHUNK):
            end = min(at + PREFILL_CHUNK, len(context))
            last = self._run(features[at - start : end - start], context[at:end], at)
        self._fed = len(context)
        return last

    def _run(self, features: Floats, tokens: Sequence[int], position: int) -> HeadPass:
        """Run rows of these tokens from `position` on, and put them into the ring."""
        n, window = len(tokens), self._head.shape.window
        positions = np.arange(position, position + n)
        bias = np.full((n, window + n), HIDDEN)
        near = self._positions > positions[:, None] - window
        bias[:, :window][near & (self._positions >= 0)] = 0
        bias[:, window:][np.tri(n, dtype=bool)] = 0
        ids: NDArray[np.int64] = np.array(tokens, dtype=np.int64)
        done = self._head.run(
            np.ascontiguousarray(features), ids, positions, self._keys, self._values, bias
        )
        places = (self._next + np.arange(n)) % window
        self._keys[:, :, places] = done.keys
        self._values[:, :, places] = done.values
        self._positions[places] = positions
        self._next = (self._next + n) % window
        return done

    def _forget(self, length: int) -> None:
        """Drop the rows of tokens from position `length` on."""
        self._positions[self._positions >= length] = -1
        self._fed = min(self._fed, length)

    def observe(self, outcome: Outcome) -> None:
        self._draft_length.learn(outcome)
        self.learn(outcome)

    def learn(self, outcome: Outcome) -> None:
        """See which of the last guesses were right, verified or not."""
        self._confidence.learn(outcome)
