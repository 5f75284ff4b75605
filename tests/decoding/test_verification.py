"""The distribution of sampled text: by either rule, whatever drafts, each token is a draw from the
model's own distribution (chi-square against exact probabilities), and a rule that is wrong is seen.

Rejection sampling: what a draft drew is accepted as often as the two distributions overlap, equal
seeds give equal texts, and at temperature 0 the text is the model's own.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from loop_runs import PROMPT, STEEP, Noisy, Run, drafters, drafting, naive, processed, run
from numpy.typing import NDArray
from scipy.special import softmax
from scipy.stats import chisquare

from backend.decoding import verification
from backend.decoding.clock import Clock, Phase
from backend.decoding.sampling import IndependentSampler, Sampler
from backend.decoding.seams import Constraint, Drafter, Masks
from backend.decoding.verification import KEYED, DistributionVerifier
from backend.drafters.draft_length import AdaptiveDraftLength, DraftLength
from backend.drafters.lookahead import Lookahead, Sizes
from backend.drafters.network_drafter import Hybrid, NetworkDrafter
from backend.drafters.prompt_lookup import PromptLookup
from backend.engines.draft import DraftNetwork, ModelNetwork
from backend.engines.fake import FakeEngine
from backend.types import Draw, Logits, Outcome, Proposal, Request, Sampling

#: The next token depends on the last one alone: a draw from one of eight known distributions.
VOCABULARY = 8
MODEL = FakeEngine(vocab_size=VOCABULARY, period=1, sharpness=1.0)
NEAR = Noisy(MODEL, 0.7)
TEMPERATURE = 0.8
START = (0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3)

#: Tokens that a check counts, of which so few show the mistakes below (p < 1e-4), and of each text.
DRAWS, RUN = [3_000, pytest.param(50_000, marks=pytest.mark.thorough)], 600


class Timeless(Clock):
    """Measures nothing, so that draft lengths do not go by how fast the machine is."""

    def __init__(self) -> None:
        super().__init__()
        self.last = dict.fromkeys(("draft", "mask", "forward", "rest", "total"), 0.0)

    def step(self) -> AbstractContextManager[None]:
        return nullcontext()

    def phase(self, name: Phase) -> AbstractContextManager[None]:
        return nullcontext()


class EvenHead(DraftNetwork):
    """A head that knows the even tokens alone."""

    name, layers, seconds = "head", (1,), 1e-4
    vocabulary = np.arange(0, VOCABULARY, 2, dtype=np.int64)

    def read(self, position: int, tokens: Sequence[int], states: object, *, wanted: bool) -> Logits:
        return NEAR.logits([tokens[-1]])[self.vocabulary][None]

    def rewind(self, length: int) -> None: ...

    def close(self) -> None: ...


def test_of_two_equal_siblings_the_first_one_leads_on() -> None:
    proposal = Proposal((5, 7, 5), (-1, 0, -1))
    logits = np.eye(VOCABULARY, dtype=np.float32)[[5, 7, 2, 3]]
    outcome = KEYED.verify(proposal, logits, np.ones((0, 8), np.bool_), 9, Sampler(Sampling()))
    assert (outcome.tokens, outcome.path) == ((5, 7, 2), (0, 1))


def legal(last: int) -> NDArray[np.bool_]:
    allowed = np.ones(VOCABULARY, dtype=np.bool_)
    allowed[[(last + 1) % VOCABULARY, (last + 2) % VOCABULARY]] = False
    return allowed


class NeverNext(Constraint):
    """Rules out the two tokens that follow the last one in number."""

    def __init__(self) -> None:
        self._last = START[-1]

    def cut(self, proposal: Proposal) -> Proposal:
        path, count = (self._last, *proposal.tokens), 0
        while count < len(proposal.tokens) and legal(path[count])[path[count + 1]]:
            count += 1
        tokens, parents = proposal.tokens[:count], proposal.parents[:count]
        return replace(proposal, tokens=tokens, parents=parents, scratch=0)

    def masks_along(self, proposal: Proposal) -> Masks:
        return np.stack([legal(t) for t in (self._last, *proposal.tokens)])

    def advance(self, tokens: Sequence[int]) -> None:
        self._last = tokens[-1]


#: What drafts, under the keyed rule and under rejection sampling; words of a name say what it has.
KEYED_KINDS = ("plain", "near", "far", "cut near", "greedy", "lookup", "lookahead")
DRAWN_KINDS = ("chain", "tree", "far top-k tree", "lookup", "head", "cut chain", "hybrid")


def drafter_of(kind: str, own: Sampling, *, keyed: bool) -> Drafter:
    length: DraftLength = DraftLength(2 if keyed else 3)
    if "tree" in kind or "hybrid" in kind:
        length = AdaptiveDraftLength(STEEP, 1e-5, 3)
    sampler = Sampler(own) if keyed else IndependentSampler(own)
    if kind == "plain":
        return Drafter()
    if kind == "lookup":
        return PromptLookup(length, 2)
    if kind == "lookahead":
        return Lookahead(Sizes(4, 3, 4), seeded=True, seed=own.seed)
    if kind == "greedy":
        return drafting(MODEL, length)
    if kind == "head":
        return NetworkDrafter(EvenHead(), sampler, length, vocab_size=VOCABULARY)
    draft = drafting(replace(MODEL, salt=1) if "far" in kind else NEAR, length, sampler)
    return Hybrid(PromptLookup(length, 2), draft, length) if kind == "hybrid" else draft


def written(kind: str, seed: int, tokens: int = RUN, *, keyed: bool = False) -> Run:
    own = Sampling(TEMPERATURE, top_k=5 if "top-k" in kind else 0, seed=seed)
    return run(
        MODEL,
        Request("x", max_new_tokens=tokens, sampling=own),
        drafter_of(kind, own, keyed=keyed),
        START,
        constraint=NeverNext() if "cut" in kind else Constraint(),
        verifier=KEYED if keyed else DistributionVerifier(),
        clock=Timeless(),
    )


def pvalue(kind: str, counts: NDArray[np.float64]) -> float:
    """Chi-square of how often each token followed each other one."""
    scores = np.stack([MODEL.logits([token]) for token in range(VOCABULARY)]).astype(np.float64)
    for token, row in enumerate(scores):
        if "cut" in kind:
            row[~legal(token)] = -np.inf
        if "top-k" in kind:
            row[np.argsort(-row)[5:]] = -np.inf
    expected = softmax(scores / TEMPERATURE, axis=1) * counts.sum(axis=1, keepdims=True)
    possible = expected > 0
    assert not counts[~possible].any()
    return float(chisquare(counts[possible], expected[possible], ddof=VOCABULARY - 1).pvalue)


def fits(kind: str, draws: int, *, keyed: bool) -> float:
    """How well what followed each token, in the blocks that were verified, fits the model."""
    counts, seed = np.zeros((VOCABULARY, VOCABULARY)), 0
    while counts.sum() < draws:
        first, *steps = written(kind, seed, keyed=keyed).steps
        last = first.tokens[-1]
        for step in steps:
            # Whether anything was drafted is settled before these tokens' noise is looked at, but
            # what a constraint leaves of a draft depends on it.
            if not keyed or kind == "plain" or "cut" in kind or step.drafted:
                for before, token in pairwise([last, *step.tokens]):
                    counts[before, token] += 1
            last = step.tokens[-1]
        seed += 1
    return pvalue(kind, counts)


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize(
    ("kind", "keyed"),
    [*((kind, True) for kind in KEYED_KINDS), *((kind, False) for kind in DRAWN_KINDS)],
)
def test_a_text_has_the_models_distribution_whatever_drafts(
    kind: str, keyed: bool, draws: int
) -> None:
    assert fits(kind, draws, keyed=keyed) > 1e-3


# Rejection sampling -------------------------------------------------------------------------------


def test_a_text_that_repeats_less_has_the_distribution_of_its_definition() -> None:
    """Three tokens, two of them drafted: each row has seen other ones."""
    start, draws = START[:2], 2_000
    own = Sampling(TEMPERATURE, min_p=0.2, repetition_penalty=1.7)
    chances: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        behind = dict[tuple[int, ...], float]()
        for text, chance in chances.items():
            seen = [*start, *text]
            scores = processed(MODEL.logits(seen), seen, own).astype(np.float64)
            behind |= {(*text, i): chance * p for i, p in enumerate(softmax(scores)) if p}
        chances = behind
    counts = dict.fromkeys(chances, 0)
    for seed in range(draws):
        seeded = replace(own, seed=seed)
        drafter = drafting(NEAR, DraftLength(2), IndependentSampler(seeded))
        request = Request("x", max_new_tokens=3, sampling=seeded)
        rule = DistributionVerifier()
        tokens = run(MODEL, request, drafter, start, rule).tokens
        counts[tuple(tokens)] += 1
    often = [text for text, chance in chances.items() if chance * draws >= 5]
    observed, expected = [counts[t] for t in often], [draws * chances[t] for t in often]
    observed.append(draws - sum(observed))
    expected.append(draws - sum(expected))
    assert chisquare(observed, expected).pvalue > 1e-3


def test_drafts_are_accepted_as_often_as_their_distributions_overlap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1 - TV of a first draw, and more than under keyed noise; both from the same rows."""
    overlaps: list[float] = []
    examine = verification._examine

    def watched(target: NDArray[np.float32], draw: Draw, drawn: np.random.Generator) -> int:
        overlaps.append(float(np.minimum(target, draw.probabilities).sum()))
        return examine(target, draw, drawn)

    monkeypatch.setattr(verification, "_examine", watched)
    drawn = [written("chain", seed).score for seed in range(5)]
    accepted = sum(score.accepted for score in drawn)
    assert accepted / len(overlaps) == pytest.approx(np.mean(overlaps), abs=0.03)
    keyed = [written("near", seed, keyed=True).score for seed in range(5)]
    first = [sum(s.positions[0][1] for s in scores) for scores in (drawn, keyed)]
    rounds = [sum(s.positions[0][0] for s in scores) for scores in (drawn, keyed)]
    assert first[0] / rounds[0] > 1.05 * first[1] / rounds[1]


@pytest.mark.parametrize("kind", ["tree", "hybrid", "head"])
def test_the_same_seed_gives_the_same_text_and_what_was_drawn_is_verified(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[Proposal] = []
    rule = DistributionVerifier.verify

    def spy(self: DistributionVerifier, proposal: Proposal, *more: Any) -> Outcome:
        verified.append(proposal)
        return rule(self, proposal, *more)

    monkeypatch.setattr(DistributionVerifier, "verify", spy)
    assert written(kind, 3).tokens == written(kind, 3).tokens != written(kind, 4).tokens
    drawn = [proposal for proposal in verified if proposal.draws]
    assert len(drawn) > 50
    for proposal in drawn:
        paths = set(proposal.paths)
        assert all((*path, draw.token) in paths for path, draw in proposal.draws.items())


def test_at_temperature_0_it_is_the_keyed_rule() -> None:
    engine, request = FakeEngine(), Request("x", max_new_tokens=40)
    expected = naive(engine, PROMPT, request)
    for name, make in drafters(engine, Sampling()).items():
        assert run(engine, request, make(), verifier=DistributionVerifier()).tokens == expected, (
            name
        )


def test_a_draft_that_is_the_target_is_always_accepted() -> None:
    """Also where rounding leaves nothing of the target behind the draft."""
    logits = np.zeros((2, 3000), dtype=np.float32)
    logits[:, :7] = [9.0, 8.5, 8.0, 2.0, 1.0, 0.0, -30.0]
    own, everything = Sampling(0.7), np.ones((0, 0), dtype=np.bool_)
    draft, verifier = IndependentSampler(own), DistributionVerifier()
    for _ in range(1000):
        pair = draft.choose(logits[0], 5)
        assert pair.draw is not None
        proposal = replace(Proposal.chain([pair.token]), draws={(): pair.draw})
        verdict = verifier.verify(proposal, logits, everything, 5, Sampler(own))
        assert verdict.path == (0,)


def test_each_round_draws_numbers_of_its_own() -> None:
    """An even guess at one place passes, and is drawn, in about half of the rounds."""
    logits, everything = np.zeros((2, 2), dtype=np.float32), np.ones((0, 0), dtype=np.bool_)
    certain = Draw(0, np.array([1.0, 0.0], dtype=np.float32))
    proposal = replace(Proposal.chain([0]), draws={(): certain})
    own = Sampling(1.0)
    draft, verifier = IndependentSampler(own), DistributionVerifier()
    verdicts = [verifier.verify(proposal, logits, everything, 5, Sampler(own)) for _ in range(200)]
    assert 60 < sum(verdict.path == (0,) for verdict in verdicts) < 140
    assert 60 < sum(draft.choose(logits[0], 5).token for _ in range(200)) < 140


@pytest.mark.parametrize("width", [150, 300])
@pytest.mark.parametrize("keyed", [True, False])
def test_a_draft_may_have_more_or_fewer_logits_than_the_target(width: int, keyed: bool) -> None:
    """Vocabularies of one tokenizer may be padded to different widths."""
    target, own = FakeEngine(vocab_size=200), Sampling(1.0, seed=2)
    draft = FakeEngine(vocab_size=width, salt=3)
    sampler = Sampler(own) if keyed else IndependentSampler(own)
    network = ModelNetwork(draft.open(), draft)
    drafter = NetworkDrafter(network, sampler, DraftLength(4), vocab_size=200)
    request = Request("x", max_new_tokens=60, sampling=own)
    score = run(target, request, drafter, PROMPT, KEYED if keyed else DistributionVerifier()).score
    assert score.drafted > 60
    assert len(score.tokens) == 60
    if keyed:
        assert score.tokens == naive(target, PROMPT, request)
