"""Intervals hold the truth as often as they say in simulated races on quiet and busy machines, in
short ones as in long ones, and over prompts; what says nothing has none.
"""

import random
from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import pytest

from backend.results.intervals import UNKNOWN, Commit, Ratio, median_ratio, paired

#: A plain step and a turn, in seconds.
STEP, TURN = 0.025, 0.06

#: How much the price of a pass differs between races, as repeats show: of its logarithm.
PRICE = 0.1


def machine(chance: random.Random, *, busy: bool) -> Iterator[float]:
    """How slow a shared machine is from step to step: it drifts; a busy one is taken away for a
    second now and then, and has hiccups.
    """
    drift, share = 0.0, 1.0
    while True:
        drift = 0.9 * drift + chance.gauss(0, 0.03)
        if busy and chance.random() < 0.02:
            share = 1.0 if share > 1 else chance.uniform(1.2, 2)
        hiccup = 4.0 if busy and chance.random() < 0.005 else 0.0
        yield share * (1 + drift) * chance.lognormvariate(0, 0.08) + hiccup


#: What a step of each column computes and yields, and its seconds on an undisturbed machine.
Steps = Iterator[tuple[float, int, int]]


def plain(seconds: float = STEP) -> Steps:
    while True:
        yield seconds, 1, 1


def drafting(chance: random.Random) -> Steps:
    """Drafts of two lengths, of which any number is right."""
    while True:
        drafted = chance.choice((0, 4))
        yield STEP * (1 + 0.1 * drafted), 1 + chance.randint(0, drafted), 1 + drafted


def raced(
    slow: Iterator[float], tokens: int, *columns: Steps, price: float = 1.0
) -> tuple[list[Commit], list[Commit]]:
    """Two columns that take turns, each with its own place in the memory: their commits. A pass of
    the first costs `price` of the second's, a little more or less in each race.
    """
    commits = [[Commit(0.0, 1)], [Commit(0.0, 1)]]
    tokens_of = [1, 1]
    chance = np.random.default_rng(int(next(slow) * 1e9))
    place = np.exp(chance.normal(0, 0.005, 2))
    place[0] *= np.exp(chance.normal(0, PRICE * abs(np.log(price))))
    on, until = 0, 0.0
    while running := [i for i in (0, 1) if tokens_of[i] <= tokens]:
        if on not in running or commits[on][-1].clock >= until:
            on = min(running, key=lambda i: commits[i][-1].clock)
            until = commits[on][-1].clock + TURN
        seconds, count, rows = next(columns[on])
        tokens_of[on] += count
        seconds *= place[on] * next(slow)
        commits[on].append(Commit(commits[on][-1].clock + seconds, count, rows))
    return commits[0], commits[1]


def in_common(ours: list[Commit], theirs: list[Commit]) -> Ratio:
    """Both columns when the first of them has ended; their first tokens do not count."""
    moment = min(ours[-1].clock, theirs[-1].clock)
    ours, theirs = ([each[0]._replace(tokens=0), *each[1:]] for each in (ours, theirs))
    return paired(ours, theirs, moment)


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize(("tokens", "pace"), [(24, 1.0), (32, 1.5), (128, 0.7), (192, 1.9)])
def test_an_interval_holds_the_truth_in_95_of_100_races(
    tokens: int, pace: float, *, busy: bool
) -> None:
    """More where there are few slices, for which Student's t is too careful."""
    slow, races = machine(random.Random(tokens), busy=busy), 200
    ratios = [
        in_common(*raced(slow, tokens, plain(STEP / pace), plain(), price=1 / pace))
        for _ in range(races)
    ]
    assert all(ratio.known for ratio in ratios)
    true = sum(ratio.low <= pace <= ratio.high for ratio in ratios) / races
    assert 0.91 <= true <= 0.995


@pytest.mark.parametrize("busy", [False, True])
def test_what_a_text_has_drafts_yield_is_no_doubt_about_the_speed(*, busy: bool) -> None:
    """An interval is of this text, not of others that the next race could write."""
    chance, races = random.Random(1), 200
    slow, true, widths = machine(chance, busy=busy), 0, list[float]()
    for _ in range(races):
        ours, theirs = raced(slow, 128, drafting(chance), plain(), price=1.2)
        whole = ours[1:]
        due = sum(STEP * (1 + 0.1 * (commit.rows - 1)) for commit in whole)
        truth = sum(commit.tokens for commit in whole) / due * STEP
        ratio = in_common(ours, theirs)
        true += ratio.low <= truth <= ratio.high
        widths.append(ratio.high / ratio.low)
    assert 0.91 <= true / races <= 0.995
    assert busy or np.median(widths) < 1.12


@pytest.mark.parametrize("busy", [False, True])
def test_a_short_race_tells_what_is_clear(*, busy: bool) -> None:
    """Both decode for half a second."""
    chance = random.Random(3)
    slow, clear = machine(chance, busy=busy), 0
    for _ in range(200):
        clear += in_common(*raced(slow, 32, drafting(chance), plain())).above
    assert clear / 200 > 0.85


def test_what_slows_both_columns_widens_nothing() -> None:
    """The machine halves its speed in the middle of a race: both columns see that."""
    steps = [0.02] * 64 + [0.04] * 64
    chance = random.Random(0)
    ours, theirs = (
        [
            Commit(clock, 1)
            for clock in accumulate(
                (step * chance.lognormvariate(0, 0.02) for step in steps), initial=0.0
            )
        ]
        for _ in range(2)
    )
    ratio = in_common(ours, theirs)
    assert 0.97 < ratio.low < ratio.high < 1.03


def test_tokens_count_for_the_time_in_which_their_pass_ran() -> None:
    """One pass a second commits two tokens: two a second, in every part of a second."""
    ours = [Commit(0.0, 0), *(Commit(float(i), 2) for i in range(1, 41))]
    theirs = [Commit(0.0, 0), *(Commit(0.5 * i, 1) for i in range(1, 80))]
    ratio = paired(ours, theirs, 20.3)
    assert (ratio.value, ratio.low * ratio.high) == pytest.approx((1.0, 1.0))
    nothing = [Commit(float(i), 0) for i in range(41)]
    assert paired(nothing, theirs, 20.3) == UNKNOWN


def test_repeats_make_a_median_surer_of_its_prompts_only() -> None:
    chance, true, true_alone = random.Random(0), 0, 0
    for _ in range(200):
        values, prompts = list[float](), list[int]()
        for prompt in range(9):
            truth = chance.lognormvariate(0.3, 0.2)
            values += [truth * chance.lognormvariate(0, 0.05) for _ in range(5)]
            prompts += [prompt] * 5
        ratio, as_prompts = median_ratio(values, prompts), median_ratio(values)
        true += ratio.low <= np.exp(0.3) <= ratio.high
        true_alone += as_prompts.low <= np.exp(0.3) <= as_prompts.high
    assert 0.91 <= true / 200 <= 0.995
    assert true_alone / 200 < 0.8


def test_few_prompts_have_a_median_and_no_interval() -> None:
    assert median_ratio([]) == UNKNOWN
    assert median_ratio([1.5, 2.0, 1.0]) == Ratio(1.5)
    assert median_ratio([1.2, 1.1, 1.3, 1.2, 1.25], ["one"] * 5) == Ratio(1.2)


def test_faster_and_slower_are_as_the_interval_is_written() -> None:
    clear, open_ = Ratio(1.2, 1.1, 1.31), Ratio(1.1, 1.004, 1.2)
    assert (clear.above, clear.below, open_.above, open_.below) == (True, False, False, False)
