"""A model whose texts' distribution is known: the next token depends on the last one alone, so each
is a draw from one of eight distributions, those of the eight tokens that it may follow.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare

from backend.decoding.clock import Clock, Part
from backend.engines.fake import FakeEngine
from backend.events import Step

VOCABULARY = 8
MODEL = FakeEngine(vocab_size=VOCABULARY, period=1, sharpness=1.0)
TEMPERATURE = 0.8
START = (0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3)

#: Tokens that a check counts: so few already show the mistakes that tests make on purpose, p being
#: below 1e-4; and those of each text.
DRAWS, RUN = [3_000, pytest.param(50_000, marks=pytest.mark.thorough)], 600


class Timeless(Clock):
    """Measures nothing, which is faster: these checks take a hundred thousand steps."""

    def __init__(self) -> None:
        super().__init__()
        self.last = dict.fromkeys(("draft", "mask", "forward", "rest", "total"), 0.0)

    def step(self) -> AbstractContextManager[None]:
        return nullcontext()

    def part(self, name: Part) -> AbstractContextManager[None]:
        return nullcontext()


def followers(
    written: Callable[[int], Iterable[Step]],
    draws: int,
    counted: Callable[[Step], bool] = lambda _step: True,
) -> NDArray[np.float64]:
    """How often each token followed each other one in the steps behind the first, of as many texts,
    by their seeds, as it takes; in those that are `counted`.
    """
    counts, seed = np.zeros((VOCABULARY, VOCABULARY)), 0
    while counts.sum() < draws:
        first, *steps = written(seed)
        last = first.tokens[-1]
        for step in steps:
            if counted(step):
                for before, token in pairwise([last, *step.tokens]):
                    counts[before, token] += 1
            last = step.tokens[-1]
        seed += 1
    return counts


def exact(rules_out: Callable[[int, NDArray[np.float64]], Iterable[int]]) -> NDArray[np.float64]:
    """The probability of each token behind each other one, without those that the token before and
    its scores rule out.
    """
    scores = np.stack([MODEL.logits([token]) for token in range(VOCABULARY)]).astype(np.float64)
    for token in range(VOCABULARY):
        scores[token][list(rules_out(token, scores[token]))] = -np.inf
    chances = np.exp(scores / TEMPERATURE)
    return chances / chances.sum(axis=1, keepdims=True)


def pvalue(counts: NDArray[np.float64], chances: NDArray[np.float64]) -> float:
    """Chi-square of how often each token followed each other one."""
    expected = chances * counts.sum(axis=1, keepdims=True)
    possible = expected > 0
    assert not counts[~possible].any()
    return float(chisquare(counts[possible], expected[possible], ddof=VOCABULARY - 1).pvalue)
