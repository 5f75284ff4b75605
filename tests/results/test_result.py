"""One truth about a race: what a column had at a moment over what the baseline had then; who wins,
who is shown to be faster, and what libraries' columns may claim.
"""

import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scoreboards import LONG, LONG_PAIRS, SINGLE, again, board_of, started, step, written

from backend.events import Conditions, Event, Failed, Fed, Finished, Served, Step
from backend.results.figures import figure
from backend.results.intervals import Ratio
from backend.results.result import (
    LEAST_TOKENS,
    Result,
    at,
    progress_of,
    result_of,
)
from backend.results.scoreboard import Scoreboard
from backend.types import ModelSpec

QUIET = Conditions(0.0)


def raced(names: str, *events: Event) -> Result:
    """Of a race on a quiet machine."""
    return result_of(board_of(names, QUIET, *events))


def noisy(share: float) -> Conditions:
    return Conditions(share)


def test_the_speed_up_is_of_the_moment_at_which_the_first_column_ends() -> None:
    """KV reuse writes 60 tokens at 0.1 s, the other one 60 in 30 passes of the same time: at its
    end, after 3 s, KV reuse had half as many.
    """
    result = raced("kv lookup", *written(0, LONG, 0.1), *written(1, LONG_PAIRS, 0.1))
    base, quick = result.rows
    assert (result.finished, result.moment, result.leaders) == (True, pytest.approx(3.0), (1,))
    assert (base.amount, quick.amount) == pytest.approx((30, 60))
    assert quick.speedup.value == pytest.approx(2.0)
    assert quick.verdict == "faster"
    assert (quick.rate, quick.baseline_rate) == pytest.approx((20, 10))
    assert (quick.tokens_per_pass, quick.pass_time) == pytest.approx((2.0, 1.0))
    assert (base.verdict, base.speedup.value) == ("baseline", 1.0)
    assert (result.texts, quick.text) == ("same", "same")


BLOCKS = st.lists(st.tuples(st.floats(0.01, 0.2), st.integers(1, 5)), min_size=25, max_size=60)


@given(BLOCKS)
def test_token_gaps_are_those_of_arrivals(blocks: list[tuple[float, int]]) -> None:
    """Tokens of a step come together. A server that counts at the end alone tells no arrivals."""
    names, size = ("itl_median", "itl_p95", "itl_p99"), sum(size for _, size in blocks)
    steps = [step(0, [0] * size, seconds) for seconds, size in blocks]
    (row,) = raced("kv", started(0), step(0, [0], 1.0), *steps).rows
    gaps = [gap for seconds, size in blocks for gap in (seconds, *[0.0] * (size - 1))]
    expected = np.percentile(gaps, (50, 95, 99)) * 1e3
    assert [figure(name).value(row) for name in names] == pytest.approx(expected, abs=1e-6)
    uncounted = [replace(each, tokens=[], origins=[], gaps=[]) for each in steps]
    (row,) = raced("kv", started(0), *uncounted, step(0, [0] * size, 0.1)).rows
    assert {figure(name).value(row) for name in names} == {None}


@given(
    BLOCKS,
    st.lists(st.floats(0.01, 0.2), min_size=25, max_size=120),
    st.floats(0.05, 1),
)
def test_a_speed_up_is_the_ratio_of_the_amounts_at_any_time(
    blocks: list[tuple[float, int]], plain: list[float], share: float
) -> None:
    """Live and at the end, whatever the columns' steps take: bar, number and order are one."""
    ours: list[Event] = [step(1, [1] * n, seconds) for seconds, n in blocks]
    theirs: list[Event] = [step(0, [1], seconds) for seconds in plain]
    both = [
        [started(0), step(0, [0], 1.0), *theirs, Finished(0, "token limit", [])],
        [started(1), step(1, [0], 2.0), *ours, Finished(1, "token limit", [])],
    ]
    board = board_of("kv lookup")
    for events in both:
        for event in events[: 2 + int(share * len(events))]:
            board.add(event)
    base, row = result_of(board).rows
    moment = min(row.moment, base.moment)
    amounts = [at(progress_of(score, "token"), moment)[0] for score in board.scores]
    if max(amounts) < LEAST_TOKENS:
        assert row.speedup.value == 0
    elif all(amounts):
        assert row.speedup.value == pytest.approx(amounts[1] / amounts[0])
        assert row.speedup.low <= row.speedup.value <= row.speedup.high
        assert row.rate / row.baseline_rate == pytest.approx(row.speedup.value)
        assert row.tokens_per_pass / row.pass_time == pytest.approx(row.speedup.value)


def test_what_a_column_writes_after_the_finish_changes_nothing() -> None:
    quick, late = written(1, LONG_PAIRS, 0.1), written(0, LONG, 0.1)
    fast = [raced("kv lookup", *quick, *late[:n]) for n in (45, 55, len(late))]
    assert [each.moment for each in fast] == pytest.approx([3.0] * 3)
    assert [each.rows[1].speedup for each in fast] == [fast[0].rows[1].speedup] * 3
    assert [(each.finished, each.leaders) for each in fast] == [
        (True, ()),
        (True, ()),
        (True, (1,)),
    ]


def test_nobody_wins_before_all_have_ended_and_the_noise_is_known() -> None:
    """Three winners in turn were declared in one race, and one of a race that had been stopped."""
    events = [*written(1, LONG_PAIRS, 0.1), *written(0, LONG, 0.1), *written(2, LONG, 0.03)]
    board = board_of("kv lookup transformers:lookup=4")
    for event in events:
        board.add(event)
        assert not result_of(board).leaders
        assert {row.verdict for row in result_of(board).rows} <= {"", "baseline"}
    board.add(QUIET)
    assert result_of(board).leaders == (2,)


def test_a_grammar_s_short_answer_is_measured_at_its_own_end_and_finishes_no_race() -> None:
    short = written(1, LONG_PAIRS[:15], 0.1)
    result = raced("kv kv:grammar=person lookup", *written(0, LONG, 0.1), *short)
    assert result.rows[1].moment == pytest.approx(1.5)
    assert result.moment == pytest.approx(6.0), "KV reuse's own end"


def test_other_weights_finish_no_race_and_win_none() -> None:
    spec = asdict(ModelSpec(precision="int4"))
    other = written(1, LONG_PAIRS, 0.1, spec)
    other[3] = step(1, [7, 8], 0.1)
    result = raced("kv kv@openvino/int4", *written(0, LONG, 0.1), *other)
    assert result.moment == pytest.approx(6.0)
    row = result.rows[1]
    assert (row.text, row.verdict, row.moment) == ("different", "faster", pytest.approx(3.0))
    assert (result.leaders, result.texts) == ((), "")


def test_a_text_that_changed_is_told_and_does_not_win() -> None:
    wrong = written(1, LONG_PAIRS, 0.1)
    wrong[3] = step(1, [7, 8], 0.1)
    result = raced("kv lookup", *written(0, LONG, 0.1), *wrong)
    assert (result.rows[1].text, result.texts, result.leaders) == ("changed", "changed", ())


@pytest.mark.parametrize(("share", "doubt"), [(0.2, ""), (0.3, "busy"), (0.6, "noisy")])
def test_a_noisy_race_has_ranges_and_no_verdict(share: float, doubt: str) -> None:
    both = [*written(0, LONG, 0.1), *written(1, LONG_PAIRS, 0.1)]
    result = result_of(board_of("kv lookup", *both, noisy(share)))
    assert result.doubt == doubt
    assert result.rows[1].speedup.known
    assert (result.leaders == ()) == (result.rows[1].verdict == "") == (doubt == "noisy")


def test_below_twenty_tokens_there_is_no_ratio() -> None:
    """A race that was stopped after two tokens said 0.51x."""
    result = raced("kv lookup", *written(0, SINGLE, 0.1), *written(1, SINGLE, 0.2))
    row = result.rows[1]
    assert (row.speedup.value, row.verdict, result.leaders) == (0, "short", ())


def test_a_column_that_did_the_baseline_s_work_wins_nothing() -> None:
    result = raced("kv kv", *written(0, LONG, 0.1), *written(1, LONG, 0.05))
    assert (result.rows[1].verdict, result.leaders) == ("same work", ())


def test_of_two_faster_columns_the_higher_number_wins() -> None:
    pairs, triples = LONG_PAIRS, [[i, i + 1, i + 2] for i in range(1, 61, 3)]
    result = raced(
        "kv lookup speculative",
        *written(0, LONG, 0.1),
        *written(1, pairs, 0.1),
        *written(2, triples, 0.1),
    )
    assert result.leaders == (2,)
    assert result.rows[2].speedup.value == pytest.approx(3.0)
    assert result.rows[1].speedup.value == pytest.approx(2.0)


def test_without_a_baseline_there_are_no_ratios() -> None:
    failed = [started(0), Failed(0, "out of memory")]
    result = raced("kv lookup", *failed, *written(1, LONG, 0.1))
    assert result.baseline is None
    assert (result.rows[1].speedup.value, result.leaders, result.finished) == (0, (), False)


def test_of_a_stopped_race_what_is_known_stands() -> None:
    """Both stopped after 40 and 30 passes."""
    kv, lookup = written(0, LONG, 0.1)[:42], written(1, LONG_PAIRS, 0.1)[:32]
    result = raced("kv lookup", *kv, *lookup, *(Finished(i, "stopped", []) for i in (0, 1)))
    assert not result.finished
    assert result.rows[1].speedup.value == pytest.approx(2.0)
    assert (result.rows[1].verdict, result.leaders) == ("", ())


def test_columns_that_are_not_told_apart_share_the_lead() -> None:
    """Passes take 0.05 s in one, 0.03 or 0.07 s in the other; a third one is clearly slower."""
    chance = random.Random(2)
    close = [step(2, block, chance.choice((0.03, 0.07))) for block in LONG]
    events = [started(2), step(2, [0], 1.0), *close, Finished(2, "token limit", [])]
    both = [*written(0, LONG, 0.1), *written(1, LONG, 0.05), *written(3, LONG, 0.08)]
    result = raced("kv lookup lookahead speculative", *both, *events)
    assert set(result.leaders) == {1, 2}
    assert result.rows[3].verdict == "faster"


def test_whole_times_are_compared_with_their_prompts_where_texts_are_the_same() -> None:
    """Both read for a second: 7 s against 4 s is less than twice as fast."""
    result = raced("kv lookup", *written(0, LONG, 0.1), *written(1, LONG_PAIRS, 0.1))
    assert [row.whole_time for row in result.rows] == pytest.approx([0, 7 / 4])
    cut = written(1, LONG_PAIRS, 0.1)[:-4]
    result = raced("kv lookup", *written(0, LONG, 0.1), *cut, Finished(1, "stopped", []))
    assert result.rows[1].whole_time == 0


def program(column: int, slots: int, seconds: float) -> list[Event]:
    events: list[Event] = [started(column)]
    for _ in range(slots):
        events.append(Fed(column, 5, [["fixed", "a given text: "]], 0.01))
        events.append(step(column, [1], seconds))
    return [*events, Finished(column, "end of program", [])]


def test_a_program_is_measured_in_characters_with_its_prompt() -> None:
    result = raced("kv stateless", *program(0, 10, 0.1), *program(1, 10, 0.39))
    assert result.unit == "character"
    assert result.moment == pytest.approx(1.1)
    assert result.rows[1].speedup.value == pytest.approx(0.28, abs=0.03)


def test_progress_begins_with_the_first_token_and_only_grows() -> None:
    board = board_of("kv", *written(0, LONG_PAIRS, 0.1))
    commits = progress_of(board.scores[0], "token")
    assert (commits[0].clock, commits[0].tokens) == (0, 0)
    assert sum(commit.tokens for commit in commits) == 60
    assert all(a.clock < b.clock for a, b in pairwise(commits))
    assert progress_of(Scoreboard(board.columns).scores[0], "token") == []


GENAI = {"engine": "openvino_genai"}


def library(column: int, rounds: list[list[int]], seconds: float) -> list[Event]:
    """A library's column: what each round wrote and when, and nothing of rows or parts."""
    events = written(column, rounds, seconds, GENAI)
    return [
        replace(each, rows=0, drafted=0, gaps=[], seconds={"total": each.seconds["total"]})
        if isinstance(each, Step)
        else each
        for each in events
    ]


PAIRS = [[2 * i + 1, 2 * i + 2] for i in range(30)]


def test_a_column_that_runs_alone_sets_the_finish_once_it_has_run() -> None:
    """It waits for the others, and may have been quicker."""
    both = [*written(0, LONG, 0.1), *written(1, LONG, 0.08)]
    waiting = result_of(board_of("kv lookup openvino_genai", *both))
    assert (waiting.moment, waiting.leaders) == (pytest.approx(4.8), ())
    alone = library(2, PAIRS, 0.05)
    once = raced("kv lookup openvino_genai", *both, *alone)
    assert (once.moment, once.leaders) == (pytest.approx(1.5), ()), "nobody knows how sure it is"
    assert (once.rows[2].verdict, once.rows[2].speedup.known) == ("", False)
    result = raced("kv lookup openvino_genai", *both, *alone, again(2, PAIRS, 0.05))
    assert (result.moment, result.leaders) == (pytest.approx(1.5), (2,)), "the same text"


def test_columns_that_run_alone_are_compared_by_their_runs() -> None:
    """The more they differ, or the fewer there are, the less sure is the mean of them."""

    def ratio(*costs: float, base: Sequence[float] = (0.1,)) -> Ratio:
        events = [*written(0, LONG, base[0]), *(again(0, LONG, cost) for cost in base[1:])]
        events += [*written(1, LONG, costs[0]), *(again(1, LONG, cost) for cost in costs[1:])]
        row = raced("llamacpp llamacpp:spec=ngram-simple", *events).rows[1]
        assert row.rate == pytest.approx(row.baseline_rate * row.speedup.value)
        return row.speedup

    assert not ratio(0.05).known
    steady, moved = ratio(0.05, 0.05, base=(0.1, 0.1)), ratio(0.05, 0.08, base=(0.1, 0.1))
    assert steady.value == pytest.approx(2)
    assert moved.value == pytest.approx(0.1 / sqrt(0.05 * 0.08))
    widths = [log(each.high / each.low) for each in (ratio(0.05, 0.05), steady, moved)]
    assert 0.1 < widths[1] < widths[0] < widths[2] < 2
    more = ratio(0.05, 0.05, 0.05, 0.05, base=(0.1, 0.1, 0.1, 0.1))
    assert log(more.high / more.low) < widths[1]


def test_a_library_s_passes_are_counted_by_its_clock_here_and_over_no_network() -> None:
    row = raced("kv transformers", *written(0, LONG, 0.1), *library(1, PAIRS, 0.15)).rows[1]
    score = row.score
    assert (row.passes, row.tokens_per_pass) == (len(PAIRS), pytest.approx(2))
    assert (score.drafted, score.positions) == (0, []), "nobody says how much was guessed"
    assert row.speedup.known
    assert row.speedup.value == pytest.approx(4 / 3, rel=0.02)
    far = [started(1), Served(1, "network"), *library(1, PAIRS, 0.15)[1:]]
    row = raced("kv @a", *written(0, LONG, 0.1), *far).rows[1]
    assert row.tokens_per_pass == 0
    assert not row.speedup.known, "two machines have no common moment"


@pytest.mark.parametrize("lossless", [True, False])
@pytest.mark.parametrize("at", [None, 5])
def test_a_library_s_text_may_differ_and_the_first_difference_is_told(
    at: int | None, lossless: bool
) -> None:
    """It rounds, and draws, otherwise: neither a bug, nor a text that it promised."""
    rounds = [pair if i != at else [98, 99] for i, pair in enumerate(PAIRS)]
    events = library(1, rounds, 0.15)
    events[0] = replace(started(1, **GENAI), lossless=lossless)
    result = raced("kv transformers", *written(0, LONG, 0.1), *events)
    text = result.rows[1].comparison
    assert text.sameness == ("different" if at else "same")
    assert result.texts != "changed"
    assert text.comparison
    assert text.comparison.parted == (at is not None)
    assert not at or (text.comparison.agreed, text.comparison.gap) == (11, 1.0)


@pytest.mark.parametrize(
    ("costs", "verdict"),
    [
        ((0.08, 0.11), "faster"),
        ((0.06, 0.14), "unclear"),
        ((0.11, 0.11), "slower"),
    ],
)
def test_faster_and_slower_are_said_of_what_is_shown(
    costs: tuple[float, float], verdict: str
) -> None:
    """The second column's passes take either of two costs, the first's 0.1 s."""
    chance = random.Random(1)
    ours = [step(1, block, chance.choice(costs)) for block in LONG]
    events = [started(1), step(1, [0], 1.0), *ours, Finished(1, "token limit", [])]
    assert raced("kv lookup", *written(0, LONG, 0.1), *events).rows[1].verdict == verdict
