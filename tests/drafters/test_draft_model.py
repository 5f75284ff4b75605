"""The draft's cache always holds the text's beginning, and no forward pass is ever wasted on it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import pytest
from lib import PROMPT, Noisy, run

from backend.decoding.sampling import Sampler
from backend.drafters.draft_length import FixedDraftLength
from backend.drafters.draft_model import DraftModel
from backend.engines.fake import FakeEngine, FakeSession
from backend.text import ByteTokenizer
from backend.types import Logits, Proposal, Request, Sampling, chain_parents


@dataclass
class Watched(DraftModel):
    """Records every round: what was cached and how many passes the draft made for it."""

    engine: FakeEngine
    sampler: Sampler
    k: int
    rounds: list[tuple[int, int, int]] = field(default_factory=list)  # drafted, forwards, rows
    chunks: list[list[int]] = field(default_factory=list)  # read before the first round

    def __post_init__(self) -> None:
        session = self.engine.open()
        super().__init__(
            session, self.sampler, FixedDraftLength(self.k), self.engine.tokenizer.eos_ids
        )
        self.session: FakeSession = session

    def prefill(self, context: Sequence[int], computed: int) -> None:
        rows, before = self.engine.rows, self.session.length
        super().prefill(context, computed)
        assert self.session._kept == self._cached == list(context[:computed])
        assert self.engine.rows - rows == computed - before
        self.chunks.append(list(context[before:computed]))

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        forwards, rows = self.engine.forwards, self.engine.rows
        proposal = super().propose(context, budget)
        used = self.engine.forwards - forwards, self.engine.rows - rows
        self.rounds.append((proposal.drafted, *used))
        if proposal.tokens:
            whole = [*context, *proposal.tokens]
            assert self.session._kept == self._cached == whole[:-1]
            assert proposal.drafted <= min(self.k, budget)
        return proposal


def watched(target: FakeEngine, amount: float | None, k: int, sampling: Sampling) -> Watched:
    """A draft equal to the target, near it by `amount`, or (None) foreign."""
    model = replace(target, salt=5) if amount is None else Noisy(target, amount)
    return Watched(model, Sampler(sampling), k)


@pytest.mark.parametrize("k", [1, 2, 3, 7])
@pytest.mark.parametrize("amount", [0.0, 0.5, None])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_round_of_k_tokens_costs_k_draft_forwards_whatever_came_before(
    k: int, amount: float | None, temperature: float
) -> None:
    target = FakeEngine(vocab_size=200)
    sampling = Sampling(temperature, seed=8)
    drafter = watched(target, amount, k, sampling)
    found = run(target, Request("x", max_new_tokens=90, sampling=sampling), drafter)
    assert all(forwards == drafted for drafted, forwards, _ in drafter.rounds)
    assert tuple(chain.from_iterable(drafter.chunks)) == PROMPT, "the prompt is read once"
    # Catching up costs a row more after full acceptance, never a pass more.
    for (drafted, _, rows), before in zip(drafter.rounds[1:], found.steps[1:], strict=False):
        assert rows == (drafted and drafted + (before.accepted == before.drafted))
    shares = {0.0: 1.0, 0.5: 0.9, None: 0.7}
    assert found.score.acceptance <= shares[amount]
    if amount == 0.0:
        assert found.score.acceptance == 1
        assert len(found.steps) == 1 + -(-89 // (k + 1))


@pytest.mark.parametrize("repeats", [1, 3])
def test_the_prompt_is_read_once_and_in_the_targets_chunks(repeats: int) -> None:
    target = FakeEngine()
    drafter = watched(target, 0.5, 4, Sampling())
    prompt = PROMPT * repeats
    run(target, Request("x", max_new_tokens=20), drafter, prompt, cache=False)
    assert tuple(chain.from_iterable(drafter.chunks)) == prompt
    assert [len(chunk) for chunk in drafter.chunks[:-1]] == [64] * ((len(prompt) - 1) // 64)
    assert drafter.engine.forwards - sum(f for _, f, _ in drafter.rounds) == len(drafter.chunks)


def test_only_what_departs_from_the_cache_is_read_again() -> None:
    """A session may hold an earlier text; a shift, or a cut, takes tokens away in the middle."""
    drafter = watched(FakeEngine(), 0.0, 3, Sampling())
    drafter.prefill(PROMPT, len(PROMPT))
    shifted = [*PROMPT[:4], *PROMPT[20:]]
    drafter.rewind(4)
    rows = drafter.engine.rows
    proposal = drafter.propose(shifted, 9)
    assert drafter.engine.rows - rows == len(shifted) - 4 + proposal.drafted - 1
    session = drafter.engine.open()
    session.forward(PROMPT[:30], chain_parents(30), ())
    session.keep(range(30))
    rows = drafter.engine.rows
    other = DraftModel(session, Sampler(Sampling()), FixedDraftLength(3), frozenset(), PROMPT[:30])
    other.prefill(PROMPT, 10)  # a chunk that is held already
    assert drafter.engine.rows == rows
    other.prefill([*PROMPT[:25], 7, 7, 7], 27)
    assert drafter.engine.rows - rows == 2
    assert session._kept == [*PROMPT[:25], 7, 7]


def test_no_room_means_no_pass() -> None:
    drafter = watched(FakeEngine(), 0.0, 4, Sampling())
    drafter.prefill(PROMPT, len(PROMPT))
    before = drafter.engine.forwards
    for budget in (0, -1):
        assert drafter.propose([*PROMPT, 65], budget) == Proposal()
    assert drafter.engine.forwards == before


def test_it_catches_up_after_rounds_in_which_it_was_not_asked() -> None:
    """Forced tokens of a grammar are committed without asking the drafter."""
    drafter = watched(FakeEngine(), 0.0, 3, Sampling())
    drafter.prefill(PROMPT, len(PROMPT))
    text = [*PROMPT, 65]
    first = drafter.propose(text, 9)
    text += [*first.tokens[:2], 66, 67, 68, 69]
    assert drafter.propose(text, 9).drafted == 3
    assert [forwards for _, forwards, _ in drafter.rounds] == [3, 3]


class Ends(FakeEngine):
    def logits(self, prefix: Sequence[int]) -> Logits:
        values = super().logits(prefix)
        values[ByteTokenizer.EOS] = 1e4
        return values


def test_nothing_is_drafted_after_the_end() -> None:
    drafter = Watched(Ends(), Sampler(Sampling()), 5)
    drafter.prefill(PROMPT, len(PROMPT))
    assert drafter.propose([*PROMPT, 65], 9).tokens == (ByteTokenizer.EOS,)
    assert drafter.rounds == [(1, 1, 1)]
    drafter.close()
    assert drafter.engine.open_sessions == 0
