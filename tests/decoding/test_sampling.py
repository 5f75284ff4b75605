"""Choosing tokens: noise is Gumbel and keyed by seed and position alone; what top-k, top-p, min-p
and the repetition penalty leave is what definitions and transformers leave; masks hold; a part of
the vocabulary is as lucky as the whole; the walk down a tree commits what the model would write.
"""

from dataclasses import replace
from math import exp

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from loop_runs import processed
from scipy.stats import kstest

from backend.decoding.sampling import (
    Choice,
    Sampler,
    gumbel,
    noise,
    penalize,
    probabilities,
)
from backend.decoding.verification import verify
from backend.types import Proposal, Sampling

NO_LOGITS = np.zeros((0, 3), np.float32)
SEEDS = st.integers(0, 2**63 - 1)
POSITIONS = st.integers(0, 10**6)
# Few distinct values, so that ties are common; far enough apart that no rounding decides.
SCORES = st.lists(st.integers(-12, 12).map(lambda n: n / 4), min_size=1, max_size=30)


@given(SEEDS, POSITIONS, st.integers(1, 300), st.integers(0, 300))
def test_noise_depends_on_seed_and_position_only(
    seed: int, position: int, size: int, more: int
) -> None:
    first = noise(seed, position, size)
    np.random.default_rng(seed).random(7)  # whatever else draws numbers changes nothing
    assert np.array_equal(first, noise(seed, position, size))
    np.testing.assert_allclose(noise(seed, position, size + more)[:size], first, rtol=1e-6)
    assert not np.array_equal(first, noise(seed, position + 1, size))
    assert not np.array_equal(first, noise(seed ^ 1, position, size))


def test_noise_is_finite_and_its_largest_values_are_as_rare_as_they_ought_to_be() -> None:
    """Those decide which of the unlikely tokens is written: 2 ** -24, the step of uniform float32,
    would be too coarse for a vocabulary of 150,000.
    """
    bits = np.array([0, 1, 2**24, 2**31, 2**32 - 1], np.uint32)
    u = (bits + 0.5) / 2**32
    np.testing.assert_allclose(gumbel(bits)[:-1], -np.log(-np.log1p(-u))[:-1], rtol=1e-5)
    assert np.isfinite(gumbel(bits)).all()
    many = np.concatenate([noise(7, position, 1 << 18) for position in range(64)])
    for least in (6.0, 9.0, 12.0):
        count, expected = int((many > least).sum()), -np.expm1(-exp(-least)) * many.size
        assert abs(count - expected) < 5 * expected**0.5
    rare = many[many > 12]
    assert len(np.unique(rare)) >= len(rare) - 3, "hardly two are alike"


def test_noise_is_gumbel_along_positions_seeds_and_tokens() -> None:
    along = {
        "positions": [noise(5, position, 1)[0] for position in range(4000)],
        "seeds": [noise(seed, 9, 1)[0] for seed in range(4000)],
        "tokens": noise(5, 9, 4000),
    }
    for name, values in along.items():
        assert kstest(values, "gumbel_r").pvalue > 1e-3, name
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.05, name


@given(
    st.integers(0, 2**32),
    st.sampled_from([0.03, 3.0]),
    st.builds(
        Sampling,
        temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
        top_k=st.sampled_from([0, 1, 20]),
        top_p=st.sampled_from([0.3, 0.9, 1.0]),
        min_p=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
        repetition_penalty=st.sampled_from([0.4, 1.0, 1.3, 10.0]),
    ),
)
def test_tokens_have_the_probabilities_that_transformers_gives_them(
    seed: int, spread: float, sampling: Sampling
) -> None:
    """Also of a flat distribution, of which top-p leaves many tokens."""
    drawn = np.random.default_rng(seed)
    text, scores = drawn.integers(0, 50, 20).tolist(), drawn.normal(scale=spread, size=50)
    logits = scores.astype(np.float32)
    before = logits.copy()
    probabilities(logits, replace(sampling, temperature=1.0))
    assert np.array_equal(logits, before), "the logits were changed"
    expected = processed(logits, text, sampling)
    penalize(logits, text, sampling.repetition_penalty)
    if not sampling.temperature:
        np.testing.assert_allclose(logits, expected, rtol=1e-6)
    else:
        weights = np.exp(expected - expected.max())
        assert np.allclose(probabilities(logits, sampling), weights / weights.sum(), atol=1e-6)


@given(
    SCORES,
    st.sampled_from([0.0, 1e-50, 1e-9, 0.3, 1.0, 5.0]),
    st.integers(0, 5),
    st.sampled_from([0.3, 0.9, 1.0]),
    SEEDS,
    st.data(),
)
def test_only_allowed_tokens_are_ever_chosen_and_greedily_the_first_largest(
    scores: list[float],
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    data: st.DataObject,
) -> None:
    allowed = [data.draw(st.booleans()) for _ in scores]
    assume(any(allowed))
    sampler = Sampler(Sampling(temperature, top_k, top_p, seed))
    choice = sampler.choose(np.array(scores, np.float32), 11, np.array(allowed))
    ruled = [s if ok else -np.inf for s, ok in zip(scores, allowed, strict=True)]
    assert allowed[choice.token]
    assert choice.gap >= 0
    assert (choice.gap == np.inf) <= (sum(allowed) == 1 or top_k == 1 or top_p < 1)
    if temperature == 0.0:
        assert choice.token == ruled.index(max(ruled)), "the first of the largest"
    elif temperature < 1e-8:
        assert ruled[choice.token] == max(ruled)
    elif top_k:
        assert ruled[choice.token] >= sorted(ruled)[-min(top_k, len(ruled))]


# Verification -----------------------------------------------------------------------------------


@st.composite
def trees(draw: st.DrawFn) -> Proposal:
    """Any tree over three tokens: chains, branches, siblings that are duplicates, scratch rows."""
    n = draw(st.integers(0, 14))
    parents = tuple(draw(st.integers(-1, i - 1)) for i in range(n))
    tokens = tuple(draw(st.integers(0, 2)) for _ in range(n))
    return Proposal(tokens, parents, scratch=draw(st.integers(0, n)))


def branch(proposal: Proposal, row: int) -> tuple[int, ...]:
    """The tokens from the root down to drafted token `row`; () for the root, -1."""
    if row < 0:
        return ()
    return (*branch(proposal, proposal.parents[row]), proposal.tokens[row])


@given(trees(), st.integers(0, 2**32))
def test_verification_accepts_a_path_that_the_model_would_have_written(
    proposal: Proposal, model: int
) -> None:
    def token_after(path: tuple[int, ...]) -> int:
        return (hash((model, path)) >> 7) % 3

    asked: list[tuple[int, int]] = []

    def sample(row: int, depth: int) -> Choice:
        asked.append((row, depth))
        return Choice(token_after(branch(proposal, row - 1)), 1.0)

    verdict = verify(proposal, NO_LOGITS, 0, sample)
    chosen = verdict.tokens
    truth: tuple[int, ...] = ()
    for _ in chosen:
        truth += (token_after(truth),)
    assert chosen == truth
    assert len(chosen) == len(verdict.path) + 1
    above = -1
    for row in verdict.path:
        assert row < proposal.drafted
        assert proposal.parents[row] == above
        above = row
    assert branch(proposal, above) == chosen[:-1]
    assert asked == [(row + 1, depth) for depth, row in enumerate((-1, *verdict.path))]
    drafted = [branch(proposal, row) for row in range(proposal.drafted)]
    if len(set(drafted)) == len(drafted):  # no duplicates: it is the longest such path, too
        assert chosen not in drafted
    else:
        last = (i for i in range(proposal.drafted) if proposal.parents[i] == above)
        assert chosen[-1] not in {proposal.tokens[i] for i in last}


@given(
    st.lists(st.floats(-9, 9, width=32), min_size=2, max_size=30),
    st.sampled_from([0.0, 0.6, 1.0]),
    st.integers(0, 9),
)
def test_the_runner_up_is_what_would_be_chosen_without_the_best(
    logits: list[float], temperature: float, seed: int
) -> None:
    sampler, scores = Sampler(Sampling(temperature, seed=seed)), np.array(logits, dtype=np.float32)
    choice = sampler.choose(scores, 5)
    without = np.arange(len(logits)) != choice.token
    assert choice.second == sampler.choose(scores, 5, without).token
