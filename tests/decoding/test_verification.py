"""Rejection sampling: whatever drafts, the text has the model's own distribution, and at
temperature 0 it is the model's own text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from eight import (
    DRAWS,
    MODEL,
    RUN,
    START,
    TEMPERATURE,
    VOCABULARY,
    Timeless,
    exact,
    followers,
    pvalue,
)
from hypothesis import given
from hypothesis import strategies as st
from lib import PROMPT, STEEP, Noisy, Run, drafters, drafting, naive, processed, run
from numpy.typing import NDArray
from races import run_solo
from scipy.special import softmax
from scipy.stats import chisquare

from backend.bench.prompts import PROMPTS
from backend.decoding import verification
from backend.decoding.constraint import Constraint, Masks
from backend.decoding.drafter import Drafter
from backend.decoding.sampling import DraftSampler, IndependentSampler, Pair, Sampler
from backend.decoding.verification import KEYED, DistributionVerifier
from backend.drafters.draft_length import AdaptiveDraftLength, DraftLength
from backend.drafters.hybrid import Hybrid
from backend.drafters.network_drafter import NetworkDrafter
from backend.drafters.prompt_lookup import PromptLookup
from backend.engines.base import Session
from backend.engines.draft import ModelNetwork
from backend.engines.fake import FakeEngine
from backend.engines.heads.draft import Floats, HeadNetwork
from backend.engines.heads.file import HeadShape
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.strategies.column import parse_column
from backend.types import Draw, Logits, Proposal, Request, Sampling

NEAR = Noisy(MODEL, 0.7)


class EvenHead:
    """A head that knows the even tokens alone."""

    shape = HeadShape(2, 1, 1, 1, VOCABULARY, 1e-5, 1e4, layers=1, reads=(0,), window=8)
    vocabulary = np.arange(0, VOCABULARY, 2, dtype=np.int64)
    seconds = 1e-4

    def open(self) -> "EvenHead":
        return self

    def run(
        self, features: Floats, tokens: Sequence[int], *_: NDArray[Any]
    ) -> tuple[Logits, Floats]:
        logits = NEAR.logits([tokens[-1]])[self.vocabulary]
        return logits[None], np.zeros((1, 2), dtype=np.float32)

    def close(self) -> None:
        pass


class NeverNext(Constraint):
    """Rules out the two tokens that follow the last one in number."""

    def __init__(self) -> None:
        self._last = START[-1]

    def cut(self, proposal: Proposal) -> Proposal:
        path, kept = (self._last, *proposal.tokens), 0
        while kept < len(proposal.tokens) and legal(path[kept])[path[kept + 1]]:
            kept += 1
        return replace(
            proposal, tokens=proposal.tokens[:kept], parents=proposal.parents[:kept], scratch=0
        )

    def masks_along(self, proposal: Proposal) -> Masks:
        return Masks(np.stack([legal(t) for t in (self._last, *proposal.tokens)]))

    def advance(self, tokens: Sequence[int]) -> None:
        self._last = tokens[-1]


def legal(last: int) -> NDArray[np.bool_]:
    allowed = np.ones(VOCABULARY, dtype=np.bool_)
    allowed[[(last + 1) % VOCABULARY, (last + 2) % VOCABULARY]] = False
    return allowed


def sampling_of(kind: str, seed: int) -> Sampling:
    return Sampling(TEMPERATURE, top_k=5 if "top-k" in kind else 0, seed=seed)


def made(kind: str, sampling: Sampling) -> tuple[Session, Drafter, Constraint]:
    """A target's session and what else a column of this kind plugs in."""
    length: DraftLength = DraftLength(3)
    if "tree" in kind or "hybrid" in kind:
        length = AdaptiveDraftLength(STEEP, 1e-5, 3)
    sampler: DraftSampler = IndependentSampler(sampling)
    if "head" in kind:
        network = HeadNetwork(EvenHead())
        head = NetworkDrafter(network, sampler, length, vocab_size=VOCABULARY)
        return MODEL.open(), head, Constraint()
    lookup = PromptLookup(length, 2, 2)
    if kind == "lookup":
        return MODEL.open(), lookup, Constraint()
    model = replace(MODEL, salt=1) if "far" in kind else NEAR
    draft = drafting(model, length, sampler)
    drafter: Drafter = Hybrid(lookup, draft, length) if "hybrid" in kind else draft
    return MODEL.open(), drafter, NeverNext() if "cut" in kind else Constraint()


def written(kind: str, seed: int, tokens: int = RUN) -> Run:
    sampling = sampling_of(kind, seed)
    session, drafter, constraint = made(kind, sampling)
    return run(
        MODEL,
        Request("x", max_new_tokens=tokens, sampling=sampling),
        drafter,
        START,
        session=session,
        constraint=constraint,
        verifier=DistributionVerifier(),
        clock=Timeless(),
    )


def fits(kind: str, counts: NDArray[np.float64]) -> float:
    """How well counts of followers fit the model's exact probabilities."""

    def ruled_out(token: int, scores: NDArray[np.float64]) -> Iterable[int]:
        if "cut" in kind:
            return np.flatnonzero(~legal(token)).tolist()
        return np.argsort(-scores)[5:].tolist() if "top-k" in kind else ()

    return pvalue(counts, exact(ruled_out))


def pairs(kind: str, draws: int) -> NDArray[np.float64]:
    """How often each token followed each other one in the blocks that were verified."""
    return followers(lambda seed: written(kind, seed).steps, draws)


KINDS = ("chain", "tree", "far top-k tree", "lookup", "head", "cut chain", "hybrid")


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_has_the_models_distribution_whatever_drafts(kind: str, draws: int) -> None:
    assert fits(kind, pairs(kind, draws)) > 1e-3


@pytest.mark.parametrize("seeds", [600, pytest.param(4000, marks=pytest.mark.thorough)])
def test_so_have_the_first_tokens_of_many_seeds(seeds: int) -> None:
    """One token drafted in the round before, and dropped with it, tells nothing of the next."""
    counts = np.zeros((VOCABULARY, VOCABULARY))
    for seed in range(seeds):
        tokens = written("tree", seed, 5).tokens
        counts[tokens[1], tokens[2]] += 1
    assert fits("tree", counts) > 1e-3


@pytest.mark.parametrize("draws", [2_000, pytest.param(20_000, marks=pytest.mark.thorough)])
def test_a_text_that_repeats_less_has_the_distribution_of_its_definition(draws: int) -> None:
    """Three tokens, two of them drafted: each row has seen other ones."""
    start = START[:2]
    sampling = Sampling(TEMPERATURE, min_p=0.2, repetition_penalty=1.7)
    chances: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        behind = dict[tuple[int, ...], float]()
        for text, chance in chances.items():
            seen = [*start, *text]
            scores = processed(MODEL.logits(seen), seen, sampling).astype(np.float64)
            behind |= {(*text, i): chance * p for i, p in enumerate(softmax(scores)) if p}
        chances = behind
    counts = dict.fromkeys(chances, 0)
    for seed in range(draws):
        own = replace(sampling, seed=seed)
        drafter = drafting(NEAR, DraftLength(2), IndependentSampler(own))
        request = Request("x", max_new_tokens=3, sampling=own)
        rule = DistributionVerifier()
        tokens = run(MODEL, request, drafter, start, rule, clock=Timeless()).tokens
        counts[tuple(tokens)] += 1
    often = [text for text, chance in chances.items() if chance * draws >= 5]
    found, expected = [counts[t] for t in often], [draws * chances[t] for t in often]
    found.append(draws - sum(found))
    expected.append(draws - sum(expected))
    assert chisquare(found, expected).pvalue > 1e-3


EXAMINE, DRAW, PROPOSE, CUT = (
    verification._examine,
    IndependentSampler.choose_two,
    NetworkDrafter.propose,
    NeverNext.cut,
)


def no_residual(target: NDArray[np.float32], draw: Draw, drawn: np.random.Generator) -> int:
    """A wrong verifier: what a draft is rejected for is not taken off."""
    token = EXAMINE(target, draw, drawn)
    return token if token == draw.token else verification.draw_from(target, drawn.random())


def greedy(self: IndependentSampler, logits: Logits, *more: Any) -> Pair:
    """A greedy draft that says it had drawn."""
    pair, best = DRAW(self, logits, *more), int(logits.argmax())
    assert pair.draw is not None
    return pair._replace(token=best, draw=replace(pair.draw, index=best))


def likely(self: NetworkDrafter, context: Sequence[int], budget: int) -> Proposal:
    """Unlikely tokens are left out. Whoever drafts by keyed noise may do so: there it does not
    matter how a token came about.
    """
    made, depth = PROPOSE(self, context, budget), 0
    while depth < made.drafted:
        draw = made.draws[made.tokens[:depth]]
        if draw.probabilities[draw.index] < 0.2:
            break
        depth += 1
    draws = {made.tokens[:i]: made.draws[made.tokens[:i]] for i in range(depth)}
    return replace(Proposal.chain(made.tokens[:depth]), draws=draws)


def silently(self: NeverNext, proposal: Proposal) -> Proposal:
    """Tokens that a constraint cut off, which were drawn and could not be, are forgotten: the
    others come out too probable.
    """
    left = CUT(self, proposal)
    draws = {path: draw for path, draw in left.draws.items() if len(path) < left.drafted}
    return replace(left, draws=draws)


@pytest.mark.parametrize(
    ("kind", "where", "name", "mistake"),
    [
        *((kind, verification, "_examine", no_residual) for kind in ("chain", "head")),
        ("chain", IndependentSampler, "choose_two", greedy),
        ("chain", NetworkDrafter, "propose", likely),
        ("cut chain", NeverNext, "cut", silently),
    ],
)
def test_the_check_sees_a_mistake(
    kind: str, where: object, name: str, mistake: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, mistake)
    assert fits(kind, pairs(kind, DRAWS[0])) < 1e-4


@pytest.mark.parametrize("kind", ["tree", "hybrid", "head"])
def test_what_was_drawn_is_verified_whatever_else_is(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Proposal] = []
    rule = DistributionVerifier.verify

    def spy(self: DistributionVerifier, proposal: Proposal, *more: Any) -> verification.Verdict:
        seen.append(proposal)
        return rule(self, proposal, *more)

    monkeypatch.setattr(DistributionVerifier, "verify", spy)
    written(kind, 1)
    drawn = [proposal for proposal in seen if proposal.draws]
    assert len(drawn) > 50
    for proposal in drawn:
        paths = set(proposal.paths)
        assert all((*path, draw.token) in paths for path, draw in proposal.draws.items())


def test_drafts_are_accepted_as_often_as_their_distributions_overlap() -> None:
    """1 - TV of a first draw, and more than under keyed noise; both from the same rows."""
    scores = [run_of.score for run_of in (written("chain", seed) for seed in range(5))]
    overlaps = [overlap for score in scores for overlap in score.overlaps]
    accepted, drafted = sum(s.accepted for s in scores), len(overlaps)
    assert accepted / drafted == pytest.approx(np.mean(overlaps), abs=0.03)
    keyed = [
        run(
            MODEL,
            Request("x", max_new_tokens=RUN, sampling=Sampling(0.8, seed=seed)),
            drafting(NEAR, DraftLength(3), Sampler(Sampling(0.8, seed=seed))),
            START,
        ).score
        for seed in range(5)
    ]
    assert sum(s.accepted for s in scores) / sum(s.steps for s in scores) > 1.1 * (
        sum(s.accepted for s in keyed) / sum(s.steps for s in keyed)
    )


@pytest.mark.parametrize("kind", ["tree", "hybrid", "head"])
def test_the_same_seed_gives_the_same_text(kind: str) -> None:
    assert written(kind, 3).tokens == written(kind, 3).tokens != written(kind, 4).tokens


def test_at_temperature_0_it_is_the_keyed_rule() -> None:
    engine, request = FakeEngine(), Request("x", max_new_tokens=40)
    expected = naive(engine, PROMPT, request)
    for name, make in drafters(engine, Sampling()).items():
        assert run(engine, request, make(), verifier=DistributionVerifier()).tokens == expected, (
            name
        )


@given(st.integers(0, 2**32), st.floats(0.2, 3.0), st.integers(1, 6), st.integers(1, 30))
def test_a_draw_is_one_of_the_tokens_that_are_possible(
    seed: int, temperature: float, top_k: int, size: int
) -> None:
    logits = np.random.default_rng(seed).normal(size=size).astype(np.float32)
    pair = IndependentSampler(Sampling(temperature, top_k, seed=seed)).choose_two(logits, 7)
    assert pair.draw is not None
    possible = np.flatnonzero(pair.draw.probabilities)
    assert len(possible) == min(top_k, size)
    assert pair.token == pair.draw.token
    assert pair.token in possible
    assert pair.second == -1
    assert pair.draw.probabilities.sum() == pytest.approx(1.0, abs=1e-5)


def test_a_draft_that_is_the_target_is_always_accepted() -> None:
    """Also where rounding leaves nothing of the target behind the draft."""
    logits = np.zeros((2, 3000), dtype=np.float32)
    logits[:, :7] = [9.0, 8.5, 8.0, 2.0, 1.0, 0.0, -30.0]
    sampling, everything = Sampling(0.7), np.ones((0, 0), dtype=np.bool_)
    draft, verifier = IndependentSampler(sampling), DistributionVerifier()
    sampler = Sampler(sampling)
    for _ in range(2000):
        pair = draft.choose_two(logits[0], 5)
        assert pair.draw is not None
        proposal = replace(Proposal.chain([pair.token]), draws={(): pair.draw})
        verdict = verifier.verify(proposal, logits, everything, 5, sampler)
        assert verdict.rows == (0,)
        assert verdict.overlaps[0] == pytest.approx(1.0)


@pytest.mark.parametrize("width", [150, 300])
@pytest.mark.parametrize("promise", ["text", "distribution"])
def test_a_draft_may_have_more_or_fewer_logits_than_the_target(width: int, promise: str) -> None:
    """Of padded vocabularies of one tokenizer, a wider draft's distribution could not be taken from
    the target's (ValueError).
    """
    target, sampling = FakeEngine(vocab_size=200), Sampling(1.0, seed=2)
    draft = FakeEngine(vocab_size=width, salt=3)
    network = ModelNetwork(draft.open(), draft)
    sampler, verifier = Sampler(sampling), DistributionVerifier()
    drafter = NetworkDrafter(
        network,
        sampler if promise == "text" else IndependentSampler(sampling),
        DraftLength(4),
        vocab_size=200,
        verifier=KEYED if promise == "text" else verifier,
    )
    request = Request("x", max_new_tokens=60, sampling=sampling)
    found = run(target, request, drafter, verifier=drafter.verifier)
    assert found.score.drafted > 60
    assert len(found.tokens) == 60
    if promise == "text":
        assert found.tokens == naive(target, PROMPT, request)


@pytest.mark.thorough
@pytest.mark.model
@pytest.mark.parametrize(("draft", "least"), [("int4", 0.9), ("trained", 0.25)])
def test_the_built_in_models_drafts_are_accepted_as_their_overlap_says(
    draft: str, least: float
) -> None:
    """By the head and by a copy of the target, and to the same text with the same seed."""
    column = parse_column(f"speculative:draft={draft},k=4,promise=distribution")
    request = Request(PROMPTS[2].text, 40, Sampling(0.7, seed=5))
    models = LoadedModels(idle_warm_up=True)
    one, again = (run_solo(Race(request, (column,)), 0, models) for _ in range(2))
    assert one.state == "done", one.message
    assert not one.keeps_text
    assert one.tokens == again.tokens
    assert np.mean(one.overlaps) > least
    assert one.accepted / len(one.overlaps) == pytest.approx(np.mean(one.overlaps), abs=0.25)
