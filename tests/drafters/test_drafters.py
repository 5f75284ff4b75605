"""Drafters: prompt lookup proposes what a search of the whole text finds. A draft network's cache
holds the text's beginning, no pass is wasted on it, and it is shown the true hidden states. The
hybrid asks whichever earns more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_runs import PROMPT, Noisy, drafting, naive, run

from backend.costs import PassCosts
from backend.decoding.clock import Clock
from backend.decoding.loop import Parts, decode
from backend.decoding.sampling import Sampler
from backend.drafters.draft_length import AdaptiveDraftLength, DraftLength
from backend.drafters.network_drafter import READ_FORCED, Hybrid, NetworkDrafter
from backend.drafters.prompt_lookup import PromptLookup
from backend.engines.draft import DraftNetwork, ModelNetwork
from backend.engines.fake import FakeEngine
from backend.engines.session import Session
from backend.events import Step
from backend.tokenizer import ByteTokenizer
from backend.types import (
    HiddenStates,
    Logits,
    Outcome,
    Proposal,
    Request,
    Sampling,
    chain_parents,
)

# Prompt lookup ----------------------------------------------------------------------------------


def brute_force(text: Sequence[int], k: int, ngram: int, budget: int) -> tuple[int, ...]:
    """Longest ending first, latest earlier occurrence first; a loop goes on with itself."""
    for n in range(min(ngram, len(text)), 0, -1):
        for start in range(len(text) - n - 1, -1, -1):
            if text[start : start + n] == text[len(text) - n :]:
                longer = list(text)
                while len(longer) < len(text) + min(k, budget):
                    longer.append(longer[start + n + len(longer) - len(text)])
                return tuple(longer[len(text) :])
    return ()


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(0, 9))),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(-1, 10),
)
def test_it_proposes_what_a_search_of_the_whole_text_finds(
    prompt: list[int], blocks: list[tuple[list[int], int]], k: int, ngram: int, budget: int
) -> None:
    """Also of a text that is cut back on the way."""
    drafter = PromptLookup(DraftLength(k), ngram)
    drafter.prefill(prompt, len(prompt))
    text = list(prompt)
    for block, cut in [([], 0), *blocks]:
        if cut and cut < len(text):
            del text[cut:]
            drafter.rewind(cut)
        text += block
        proposal = drafter.propose(text, budget)
        assert proposal.tokens == brute_force(text, k, ngram, budget)
        assert proposal.parents == chain_parents(len(proposal.tokens))


# A whole model, which reads tokens alone ----------------------------------------------------------


def cached(session: Session) -> list[int]:
    """The tokens whose rows a fake's session holds."""
    arrays = session.save(session.length)
    return arrays["tokens"].ravel().tolist() if arrays else []


class Watched(NetworkDrafter):
    """Records every round: what was drafted and how many passes the draft reader for it."""

    def __init__(self, engine: FakeEngine, sampler: Sampler, k: int) -> None:
        self.engine, self.k, self.session = engine, k, engine.open()
        self.rounds: list[tuple[int, int, int]] = []  # drafted, forwards, rows
        self.chunks: list[list[int]] = []  # read before the first round
        network = ModelNetwork(self.session, engine)
        super().__init__(network, sampler, DraftLength(k), engine.tokenizer.eos_ids)

    def prefill(self, context: Sequence[int], computed: int) -> None:
        rows, before = self.engine.rows, self.session.length
        super().prefill(context, computed)
        assert cached(self.session) == list(context[:computed])
        assert self.engine.rows - rows == computed - before
        self.chunks.append(list(context[before:computed]))

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        forwards, rows = self.engine.forwards, self.engine.rows
        proposal = super().propose(context, budget)
        used = self.engine.forwards - forwards, self.engine.rows - rows
        self.rounds.append((proposal.drafted, *used))
        if proposal.tokens:
            assert cached(self.session) == [*context, *proposal.tokens][:-1]
            assert proposal.drafted <= min(self.k, budget)
            assert len(context) + proposal.drafted < len(PROMPT) + 90, "it could not be written"
        return proposal


def watched(target: FakeEngine, amount: float | None, k: int, sampling: Sampling) -> Watched:
    """A draft equal to the target, near it by `amount`, or (None) foreign."""
    model = replace(target, salt=5) if amount is None else Noisy(target, amount)
    return Watched(model, Sampler(sampling), k)


@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("amount", [0.0, 0.5, None])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_round_of_k_tokens_costs_k_draft_forwards_whatever_came_before(
    k: int, amount: float | None, temperature: float
) -> None:
    target = FakeEngine(vocab_size=200)
    sampling = Sampling(temperature, seed=8)
    drafter = watched(target, amount, k, sampling)
    column = run(target, Request("x", max_new_tokens=90, sampling=sampling), drafter)
    assert all(forwards == drafted for drafted, forwards, _ in drafter.rounds)
    assert tuple(chain.from_iterable(drafter.chunks)) == PROMPT, "the prompt is read once"
    # Catching up costs a row more after full acceptance, never a pass more.
    for (drafted, _, rows), before in zip(drafter.rounds[1:], column.steps[1:], strict=False):
        caught_up = before.accepted == before.drafted
        assert rows == drafted + caught_up or not drafted
    shares = {0.0: 1.0, 0.5: 0.9, None: 0.7}
    assert column.score.acceptance <= shares[amount]
    if amount == 0.0:
        assert column.score.acceptance == 1
        assert len(column.steps) == 1 + -(-89 // (k + 1))


def test_only_what_departs_from_the_cache_is_read_again() -> None:
    """A cut takes tokens away, such as those of a program's slot."""
    drafter = watched(FakeEngine(), 0.0, 3, Sampling())
    drafter.prefill(PROMPT, len(PROMPT))
    cut = [*PROMPT[:20], 7, 7]
    drafter.rewind(20)
    rows = drafter.engine.rows
    proposal = drafter.propose(cut, 9)
    assert drafter.engine.rows - rows == 2 + proposal.drafted - 1


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


@pytest.mark.parametrize("positions", [20, len(PROMPT), len(PROMPT) + 1, 100])
@pytest.mark.parametrize("hybrid", [False, True])
def test_a_draft_with_fewer_positions_stops_drafting_and_the_text_goes_on(
    positions: int, *, hybrid: bool
) -> None:
    engine = FakeEngine(vocab_size=200)
    spec = replace(engine.spec, name="short")
    model = replace(engine, spec=spec, max_context=positions)
    length = AdaptiveDraftLength(PassCosts((1, 2, 16), (1.0, 1.1, 3.0)), 0.1, 4)
    draft = drafting(model, length)
    drafter = Hybrid(PromptLookup(length, 3), draft, length) if hybrid else draft
    request = Request("x", max_new_tokens=90)
    column = run(engine, request, drafter)
    assert column.tokens == naive(engine, PROMPT, request)
    drafter.conclude()
    assert f"at most {positions} tokens" in drafter.decision.declined[0]
    if positions > len(PROMPT):
        assert column.score.drafted > 0


# A draft that reads the target's hidden states too ------------------------------------------------

WINDOW = 16
OWN = (-1.0, -1.0)  # what the draft gives


class Recorder(DraftNetwork):
    """A draft that notes what it is shown and always drafts the token after the last one."""

    name, layers, seconds, window, vocabulary = "draft", (1,), 1e-3, WINDOW, np.arange(200)

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, tuple[float, float]]] = []  # position, token, state

    def read(
        self, position: int, tokens: Sequence[int], states: HiddenStates | None, *, wanted: bool
    ) -> Logits:
        for i, token in enumerate(tokens):
            state = OWN if states is None else tuple(states[i].tolist())
            self.rows.append((position + i, token, state))
        logits = np.zeros((1, 200), dtype=np.float32)
        logits[0, (tokens[-1] + 1) % 200] = 5.0
        return logits

    def rewind(self, length: int) -> None: ...

    def close(self) -> None: ...


@dataclass
class Reading:
    """A network that drafts, and the target whose hidden states it reads."""

    drafter: NetworkDrafter
    network: Recorder
    session: Session

    def commit(self, tokens: Sequence[int], rows: Sequence[int]) -> None:
        """As the context does."""
        assert self.drafter.states is not None
        self.session.forward(tokens, chain_parents(len(tokens)), ())
        states = self.session.hidden_states((1,))[list(rows)]
        self.drafter.states.add(self.session.length, states)
        self.session.keep(rows)

    @property
    def read(self) -> list[tuple[int, int]]:
        """Position and token of each row that the network ran."""
        return [(position, token) for position, token, _ in self.network.rows]


def reading(k: int, length: AdaptiveDraftLength | None = None) -> Reading:
    network = Recorder()
    drafter = NetworkDrafter(network, Sampler(Sampling()), length or DraftLength(k), vocab_size=257)
    return Reading(drafter, network, FakeEngine().open())


def test_it_reads_the_text_once_and_drafts_from_its_own_guesses() -> None:
    reader = reading(3)
    text = list(PROMPT[:10])
    reader.commit(text[:9], range(9))  # the last token is never computed yet
    proposal = reader.drafter.propose(text, 8)
    last = text[-1]
    assert proposal.tokens == (last + 1, last + 2, last + 3)
    assert proposal.calls == 3
    assert reader.read[:9] == [(i, text[i]) for i in range(1, 10)]
    fed = [state for _, _, state in reader.network.rows[:9]]
    assert fed == [(i - 1.0, float(text[i - 1])) for i in range(1, 10)]
    assert reader.network.rows[9:] == [(10, last + 1, OWN), (11, last + 2, OWN)]
    # The target took one guess and its own next token: only these are new to the network.
    reader.commit([last, *proposal.tokens], [0, 1])
    reader.drafter.observe(Outcome((last + 1, 50), (0,), proposal, np.zeros((0, 1), np.float32)))
    text += [last + 1, 50]
    reader.network.rows.clear()
    reader.drafter.propose(text, 8)
    assert reader.read[:2] == [(10, last + 1), (11, 50)]
    assert reader.network.rows[0][2] == (9.0, float(last)), (
        "the guess's state gave way to the true one"
    )


@pytest.mark.parametrize("count", [1, 2, READ_FORCED, READ_FORCED + 1])
def test_behind_forced_tokens_it_goes_on_from_its_own_hidden_states(count: int) -> None:
    """The target has computed none of them; once it has, its own take the place of the guesses."""
    reader = reading(2)
    text, forced = list(PROMPT[:10]), [70, 90, 110, 130, 150][:count]
    reader.commit(text[:9], range(9))
    proposal = reader.drafter.propose([*text, *forced], 8)
    if count > READ_FORCED:
        assert not proposal.tokens
        assert not reader.network.rows, "so many passes cost more than they can earn"
        return
    assert proposal.tokens == (forced[-1] + 1, forced[-1] + 2)
    assert proposal.calls == count + 2
    behind = [(10 + i, token, OWN) for i, token in enumerate([*forced, forced[-1] + 1])]
    assert reader.network.rows[9:] == behind
    reader.commit([text[-1], *forced, *proposal.tokens], range(1 + count))
    tokens = (*forced, 50)
    path, logits = tuple(range(count)), np.zeros((0, 1), np.float32)
    outcome = Outcome(tokens, path, proposal.behind(forced), logits)
    reader.drafter.observe(outcome)
    reader.network.rows.clear()
    reader.drafter.propose([*text, *tokens], 8)
    assert reader.read[: count + 1] == [(10 + i, token) for i, token in enumerate(tokens)]
    assert all(state[0] >= 0 for _, _, state in reader.network.rows[: count + 1])


def test_the_prompt_is_read_before_the_first_token_and_never_again() -> None:
    """TTFT counts it, not TPOT. What the window will have left is not read."""
    engine = FakeEngine(vocab_size=200)
    prompt = (PROMPT * 3)[:150]
    for text in (prompt, prompt[:10], prompt[:1]):
        reader = reading(3)
        parts = Parts(engine.open(), engine.tokenizer, Sampler(Sampling()), Clock(), reader.drafter)
        events = decode(0, text, Request("x", max_new_tokens=20), parts)
        first = next(len(reader.network.rows) for event in events if isinstance(event, Step))
        beginning = [position for position, _ in reader.read[:first]]
        assert beginning == list(range(max(1, len(text) + 1 - WINDOW), len(text)))
        list(events)
        assert min(position for position, _ in reader.read[first:]) == len(text)


def test_hidden_states_follow_the_text() -> None:
    reader = reading(1)
    states = reader.drafter.states
    assert states is not None
    reader.commit(range(300), range(300))
    reader.commit([1, 2, 3], [0])
    assert (states.start, states.end) == (0, 301)
    assert states.between(298, 301).tolist() == [[298, 298], [299, 299], [300, 1]]
    states.truncate(299)
    assert states.between(298, 299).tolist() == [[298, 298]]
    states.add(400, np.zeros((1, 2), np.float32))
    with pytest.raises(RuntimeError, match="known are 400"):
        states.between(298, 299)


# Behind prompt lookup -----------------------------------------------------------------------------


def test_a_hybrid_looks_up_where_that_is_usually_right_and_asks_its_draft_elsewhere() -> None:
    reader, draft_length = reading(2), DraftLength(2)
    hybrid = Hybrid(PromptLookup(draft_length, 3), reader.drafter, draft_length)
    loop = [5, 6, 7] * 6
    reader.commit(loop[:-1], range(len(loop) - 1))
    assert hybrid.propose(loop, 9).tokens == (5, 6)
    assert not reader.network.rows, "the draft was not asked"
    fresh = [*loop, 150]
    reader.commit([loop[-1]], [0])
    proposal = hybrid.propose(fresh, 9)
    assert proposal.tokens == (151, 152)
    assert proposal.calls == 2


def test_a_draft_that_was_not_believed_learns_all_the_same() -> None:
    draft_length = AdaptiveDraftLength(PassCosts((1, 2, 16), (1.0, 1.1, 3.0)), 0.2, 4)
    reader = reading(1)
    hybrid = Hybrid(PromptLookup(draft_length, 3), reader.drafter, draft_length)
    text, before = list(range(20)), reader.drafter.first_token_acceptance
    for step in range(12):
        length = reader.session.length
        reader.commit(text[length:-1], range(len(text) - 1 - length))
        proposal = hybrid.propose(text, 9)
        assert proposal.calls == 1, step
        token = 199 - step  # never what the network drafts
        hybrid.observe(Outcome((token,), (), proposal, np.zeros((0, 1), np.float32)))
        text.append(token)
    assert reader.drafter.first_token_acceptance < before / 2
