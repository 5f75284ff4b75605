"""Speculative drafting with a model (arXiv 2211.17192, 2302.01318): tokens one after another.

The draft samples with the request's own sampler and noise, which is what maximises acceptance by
the equality rule of verification, or with the request's own sampling and numbers that nobody
shares, which is what rejection sampling wants.
"""

from collections.abc import Sequence, Set

from backend.decoding.drafter import NOTHING, NullDrafter
from backend.decoding.sampling import DraftSampler
from backend.drafters.acceptance import Calibration
from backend.drafters.draft_length import DraftLength
from backend.drafters.guesses import Guess
from backend.engines.base import Session
from backend.types import PREFILL_CHUNK, Outcome, Proposal, chain_parents


class DraftModel(NullDrafter):
    """Owns the draft's session and closes it.

    The session's cache may lag behind the text or run ahead of it on rejected tokens; both are
    made good inside the next round's first forward pass, never by an extra one.
    """

    def __init__(
        self,
        session: Session,
        sampler: DraftSampler,
        draft_length: DraftLength,
        eos_ids: Set[int],
        cached: Sequence[int] = (),
    ) -> None:
        """`cached` are the tokens that the session holds already."""
        self._session = session
        self._sampler = sampler
        self._draft_length = draft_length
        self._eos_ids = eos_ids
        self._cached = list(cached)
        self._agreed = 0  # how many cached tokens are known to be the text's
        self._calibration = Calibration("draft model")

    @property
    def first_token_acceptance(self) -> float:
        """How often the first token of a round was right lately."""
        return self._calibration.first_token_acceptance

    @property
    def guesses(self) -> Sequence[Guess]:
        """Those of the last round."""
        return self._calibration.guesses

    def prefill(self, context: Sequence[int], computed: int) -> None:
        context = context[:computed]
        self._agree(context, len(context))
        if self._agreed < min(len(self._cached), len(context)):
            self._forget()
        while len(self._cached) < len(context):
            self._feed(context)

    def _expect(self, length: int) -> None:
        """Forget tokens that a text of this length has computed otherwise."""
        self._session.expect(length)
        del self._cached[self._session.length :]
        self._agreed = min(self._agreed, len(self._cached))

    def _feed(self, context: Sequence[int]) -> None:
        """Compute one chunk of the text that is not cached yet."""
        chunk = context[len(self._cached) : len(self._cached) + PREFILL_CHUNK]
        self._session.forward(chunk, chain_parents(len(chunk)), ())
        self._keep(chunk)

    def rewind(self, length: int) -> None:
        self._agreed = min(self._agreed, length)

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        self._draft_length.begin(len(context))
        if budget <= 0 or not self._calibration.begin(self._draft_length):
            return NOTHING
        self._expect(len(context))
        # One token at least is left to be fed.
        self._agree(context, len(context) - 1)
        if self._agreed < len(self._cached):
            self._forget()
        while len(context) - len(self._cached) > PREFILL_CHUNK:
            self._feed(context)
        pending = list(context[len(self._cached) :])
        drafted = 0
        while True:
            rows = (len(pending) - 1,)
            logits = self._session.forward(pending, chain_parents(len(pending)), rows)
            self._keep(pending)
            pair = self._sampler.choose_two(logits[0], len(context) + drafted)
            self._calibration.add(pair, second=self._draft_length.branches)
            drafted += 1
            ended = drafted == budget or pair.token in self._eos_ids
            if ended or not self._draft_length.extends(drafted, self._calibration.path_probability):
                return self._calibration.proposal(self._draft_length, drafted)
            pending = [pair.token]

    def _agree(self, context: Sequence[int], end: int) -> None:
        """Find out how many cached tokens, of those before `end`, are the text's."""
        end = min(len(self._cached), end)
        self._agreed = min(self._agreed, end)
        while self._agreed < end and self._cached[self._agreed] == context[self._agreed]:
            self._agreed += 1

    def _forget(self) -> None:
        """Drop cached tokens that the target did not commit."""
        self._session.truncate(self._agreed)
        del self._cached[self._agreed :]

    def _keep(self, tokens: Sequence[int]) -> None:
        self._session.keep(range(len(tokens)))
        self._cached += tokens

    def observe(self, outcome: Outcome) -> None:
        self._draft_length.learn(outcome)
        self.learn(outcome)

    def conclude(self) -> None:
        self.decision = self._draft_length.summary()

    def learn(self, outcome: Outcome) -> None:
        """See which of the last guesses were right, verified or not."""
        self._calibration.learn(outcome)

    def close(self) -> None:
        self._session.close()
