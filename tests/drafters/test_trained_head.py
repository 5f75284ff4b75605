"""The head's drafter feeds it exactly the text, once, and the target's hidden states of it."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lib import PROMPT
from numpy.typing import NDArray

from backend.costs.pass_costs import PassCosts
from backend.decoding.clock import Clock
from backend.decoding.loop import Parts, decode
from backend.decoding.sampling import Sampler
from backend.drafters.draft_length import AdaptiveDraftLength, FixedDraftLength
from backend.drafters.hybrid import Hybrid
from backend.drafters.prompt_lookup import PromptLookup
from backend.drafters.trained_head import HIDDEN, READ_FORCED, TrainedHead
from backend.engines.fake import FakeEngine, FakeSession
from backend.engines.hidden_states import HiddenStateSession
from backend.events import Event, Step
from backend.heads.base import Floats, HeadPass, HostRing
from backend.heads.shape import HeadShape
from backend.types import HiddenStates, Outcome, Proposal, Request, Sampling, chain_parents

WINDOW = 16
SHAPE = HeadShape(2, 1, 1, 2, 4, 1e-5, 1e4, layers=1, reads=(0,), window=WINDOW)


class FeatureSession(FakeSession):
    """A fake whose feature at a token is (its position, the token)."""

    def hidden_states(self) -> HiddenStates:
        tokens, parents = self._pending
        depths: list[int] = []
        for parent in parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        pairs = [(len(self._kept) + d, t) for d, t in zip(depths, tokens, strict=True)]
        return np.array(pairs, dtype=np.float32).reshape(-1, 2)


class Recorder:
    """A head that notes what it is shown and always drafts the token after the last one."""

    shape = SHAPE
    vocabulary = np.arange(200, dtype=np.int64)
    seconds = 1e-3

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, tuple[float, float]]] = []  # position, token, feature
        self.seen: list[set[int]] = []  # positions that each row saw, its own included

    def open(self) -> HostRing:
        return HostRing(self.shape, self.run)

    def run(
        self, features: Floats, tokens: NDArray[np.int64], positions: NDArray[np.int64],
        keys: Floats, values: Floats, bias: Floats,
    ) -> HeadPass:  # fmt: skip
        n = len(tokens)
        assert bias.shape == (n, WINDOW + n)
        for i in range(n):
            self.rows.append((int(positions[i]), int(tokens[i]), tuple(features[i].tolist())))
            cached = [int(keys[0, 0, j, 0]) for j in range(WINDOW) if bias[i, j] == 0]
            own = [int(positions[j]) for j in range(n) if bias[i, WINDOW + j] == 0]
            assert len(set(cached + own)) == len(cached + own), "no position twice"
            assert set(np.unique(bias)) <= {0.0, HIDDEN}
            self.seen.append({*cached, *own})
        logits = np.zeros(200, dtype=np.float32)
        logits[(int(tokens[-1]) + 1) % 200] = 5.0
        keys = np.zeros((1, 1, n, 2), dtype=np.float32)
        keys[0, 0, :, 0] = positions
        own_feature = np.array([-1.0, -1.0], dtype=np.float32)
        return HeadPass(logits, own_feature, keys, keys)


def opened(k: int) -> tuple[HiddenStateSession, Recorder, TrainedHead]:
    tapped = HiddenStateSession(FeatureSession(FakeEngine()))
    head = Recorder()
    drafter = TrainedHead(head, tapped, Sampler(Sampling()), FixedDraftLength(k), frozenset(), 257)
    return tapped, head, drafter


def commit(tapped: HiddenStateSession, tokens: Sequence[int], kept: Sequence[int]) -> None:
    tapped.forward(tokens, chain_parents(len(tokens)), ())
    tapped.keep(kept)


def test_it_reads_the_text_once_and_drafts_from_its_own_guesses() -> None:
    tapped, head, drafter = opened(3)
    text = list(PROMPT[:10])
    commit(tapped, text[:9], range(9))  # the last token is never computed yet
    proposal = drafter.propose(text, 8)
    last = text[-1]
    assert proposal.tokens == (last + 1, last + 2, last + 3)
    assert proposal.calls == 3
    fed = head.rows[:9]
    assert [(p, t) for p, t, _ in fed] == [(i, text[i]) for i in range(1, 10)]
    assert [f for _, _, f in fed] == [(i - 1.0, float(text[i - 1])) for i in range(1, 10)]
    assert head.rows[9:] == [(10, last + 1, (-1.0, -1.0)), (11, last + 2, (-1.0, -1.0))]
    # The target took one guess and its own next token: only these are new to the head.
    commit(tapped, [last, *proposal.tokens], [0, 1])
    drafter.observe(Outcome((last + 1, 50), 1, proposal, np.zeros((0, 1), np.float32)))
    text += [last + 1, 50]
    head.rows.clear()
    drafter.propose(text, 8)
    assert [(p, t) for p, t, _ in head.rows[:2]] == [(10, last + 1), (11, 50)]
    assert head.rows[0][2] == (9.0, float(last)), "the guess's own feature gave way to the true one"
    assert all({10, 11} & seen for seen in head.seen[-3:])


@pytest.mark.parametrize("count", [1, 2, READ_FORCED, READ_FORCED + 1])
def test_behind_forced_tokens_it_goes_on_from_its_own_hidden_states(count: int) -> None:
    """The target has computed none of them; once it has, its own take the place of the guesses."""
    tapped, head, drafter = opened(2)
    text, forced = list(PROMPT[:10]), [70, 90, 110, 130, 150][:count]
    commit(tapped, text[:9], range(9))
    proposal = drafter.propose([*text, *forced], 8)
    if count > READ_FORCED:
        assert not proposal.tokens
        assert not head.rows, "so many passes cost more than they can earn"
        return
    assert proposal.tokens == (forced[-1] + 1, forced[-1] + 2)
    assert proposal.calls == count + 2
    behind = [(10 + i, token, (-1.0, -1.0)) for i, token in enumerate([*forced, forced[-1] + 1])]
    assert head.rows[9:] == behind
    commit(tapped, [text[-1], *forced, *proposal.tokens], range(1 + count))
    tokens = (*forced, 50)
    outcome = Outcome(tokens, count, proposal.behind(forced), np.zeros((0, 1), np.float32))
    drafter.observe(outcome)
    head.rows.clear()
    drafter.propose([*text, *tokens], 8)
    assert [(p, t) for p, t, _ in head.rows[: count + 1]] == [
        (10 + i, token) for i, token in enumerate(tokens)
    ]
    assert all(feature[0] >= 0 for _, _, feature in head.rows[: count + 1])


def test_a_row_sees_the_last_window_of_what_was_fed_and_nothing_rejected() -> None:
    tapped, head, drafter = opened(2)
    text = list(range(40))
    commit(tapped, text[:39], range(39))
    drafter.propose(text, 8)
    assert head.seen[-2] == set(range(40 - WINDOW, 40)), "the row of the last token"
    assert head.seen[-1] == set(range(41 - WINDOW, 41))
    commit(tapped, [39, 7, 7], [0])  # all rejected
    text.append(99)
    head.seen.clear()
    drafter.propose(text, 8)
    assert head.seen[0] == set(range(41 - WINDOW, 41))


@pytest.mark.parametrize("k", [1, 2, 5, WINDOW + 3])
@given(accepted=st.lists(st.integers(0, 4), min_size=1, max_size=12))
@settings(max_examples=25, deadline=None)
def test_rejected_guesses_push_nothing_out_of_the_window(k: int, accepted: list[int]) -> None:
    """The ring went on behind the guesses of every round, so that rejected ones took the places of
    committed rows: well under half of the window stayed visible, and drafts were worse for it.
    """
    tapped, head, drafter = opened(k)
    text = list(range(30))
    commit(tapped, text[:-1], range(29))
    for right in accepted:
        fed = len(head.rows)
        proposal = drafter.propose(text, k)
        for (position, _, _), seen in zip(head.rows[fed:], head.seen[fed:], strict=True):
            assert seen == set(range(max(1, 30 - WINDOW, position + 1 - WINDOW), position + 1))
        kept = proposal.tokens[:right]
        commit(tapped, [text[-1], *proposal.tokens], range(1 + len(kept)))
        text += [*kept, 250]


def test_the_prompt_is_read_before_the_first_token_and_never_again() -> None:
    """The head read the prompt in the first round, inside TPOT, the draft model inside TTFT."""
    engine = FakeEngine(vocab_size=200)
    prompt = (PROMPT * 3)[:150]
    for text in (prompt, prompt[:10], prompt[:1]):
        tapped = HiddenStateSession(FeatureSession(engine))
        head = Recorder()
        sampler = Sampler(Sampling())
        drafter = TrainedHead(head, tapped, sampler, FixedDraftLength(3), frozenset(), 200)
        parts = Parts(tapped, engine.tokenizer, sampler, Clock(), drafter)
        fed: list[int] = []  # rows of the head after each event
        events: list[Event] = []
        for event in decode(0, text, Request("x", max_new_tokens=20), parts):
            events.append(event)
            fed.append(len(head.rows))
        first = next(i for i, event in enumerate(events) if isinstance(event, Step))
        assert [p for p, _, _ in head.rows[: fed[first]]] == list(
            range(max(1, len(text) + 1 - WINDOW), len(text))
        )
        assert fed[0] <= WINDOW, "chunks that its window will have left are not read"
        later = [p for p, _, _ in head.rows[fed[first] :]]
        assert min(later) == len(text), "the first round begins with what it must"


def test_a_long_prompt_is_read_chunk_by_chunk() -> None:
    """So that no other column waits for all of it at once."""
    tapped, head, drafter = opened(2)
    text = list(range(2 * WINDOW))
    for computed in (4, 20, 28):
        commit(tapped, text[tapped.length : computed], range(computed - tapped.length))
        drafter.prefill(text, computed)
        assert [p for p, _, _ in head.rows] == list(range(WINDOW, computed))


def test_a_shift_takes_away_what_it_dropped() -> None:
    tapped, head, drafter = opened(1)
    text = list(range(30))
    commit(tapped, text[:29], range(29))
    drafter.propose(text, 4)
    text = text[:4] + text[20:]
    tapped.truncate(4)
    drafter.rewind(4)
    commit(tapped, text[4:-1], range(len(text) - 5))
    head.rows.clear()
    drafter.propose(text, 4)
    assert [(p, t) for p, t, _ in head.rows] == [(i, text[i]) for i in range(4, len(text))]


def test_what_the_target_did_not_compute_here_is_not_read() -> None:
    """A borrowed cache has no features: the head begins behind it."""
    inner = FeatureSession(FakeEngine())
    inner.forward(range(20), chain_parents(20), ())
    inner.keep(range(20))
    tapped = HiddenStateSession(inner)
    head = Recorder()
    drafter = TrainedHead(head, tapped, Sampler(Sampling()), FixedDraftLength(2), frozenset(), 257)
    assert drafter.propose(range(21), 4) == Proposal()
    commit(tapped, [20], [0])
    drafter.propose(range(22), 4)
    assert [p for p, _, _ in head.rows] == [21, 22]
    with pytest.raises(RuntimeError, match="known from 20"):
        tapped.hidden_states_from(19)


def test_the_tap_follows_the_session() -> None:
    tapped, _, _ = opened(1)
    commit(tapped, range(300), range(300))  # more than it reserves at first
    commit(tapped, [1, 2, 3], [0])
    assert tapped.length == 301
    assert tapped.hidden_states_from(298).tolist() == [[298, 298], [299, 299], [300, 1]]
    tapped.truncate(299)
    assert tapped.hidden_states_from(298).tolist() == [[298, 298]]


def test_a_hybrid_looks_up_where_that_is_usually_right_and_asks_its_draft_elsewhere() -> None:
    tapped, head, drafter = opened(2)
    draft_length = FixedDraftLength(2)
    hybrid = Hybrid(PromptLookup(draft_length, 3), drafter, draft_length)
    loop = [5, 6, 7] * 6
    commit(tapped, loop[:-1], range(len(loop) - 1))
    assert hybrid.propose(loop, 9).tokens == (5, 6)
    assert not head.rows, "the draft was not asked"
    fresh = [*loop, 150]
    commit(tapped, [loop[-1]], [0])
    proposal = hybrid.propose(fresh, 9)
    assert proposal.tokens == (151, 152)
    assert proposal.calls == 2


def test_a_draft_that_was_not_believed_learns_all_the_same() -> None:
    """A lookup that is right again and again must not keep an even better draft from being asked,
    nor a bad draft's calls go uncounted.
    """
    tapped, _, drafter = opened(1)
    draft_length = AdaptiveDraftLength(PassCosts((1, 2, 16), (1.0, 1.1, 3.0)), 0.2, 4)
    hybrid = Hybrid(PromptLookup(draft_length, 3), drafter, draft_length)
    text, before = list(range(20)), drafter.first_token_acceptance
    for step in range(12):
        commit(tapped, text[tapped.length : -1], range(len(text) - 1 - tapped.length))
        proposal = hybrid.propose(text, 9)
        assert proposal.calls == 1, step
        token = 199 - step  # never what the head drafts
        hybrid.observe(Outcome((token,), 0, proposal, np.zeros((0, 1), np.float32)))
        text.append(token)
    assert drafter.first_token_acceptance < before / 2


def test_a_hybrid_verifies_both_guesses_in_one_tree_where_that_pays() -> None:
    """A lookup that is right in half of the cases leaves the other half to the draft."""
    tapped, _, drafter = opened(1)
    draft_length = AdaptiveDraftLength(PassCosts((1, 2, 16), (1.0, 1.01, 1.2)), 0.01, 4)
    hybrid = Hybrid(PromptLookup(draft_length, 3), drafter, draft_length)
    text = [5, 6, 7, 90, 91, 5, 6, 7]
    commit(tapped, text[:-1], range(len(text) - 1))
    proposal = hybrid.propose(text, 9)
    roots = {
        token for token, parent in zip(proposal.tokens, proposal.parents, strict=True) if parent < 0
    }
    assert {90, 8} <= roots, "looked up, and drafted"
    assert proposal.calls
