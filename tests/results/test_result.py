"""One truth about a race: what a column had at a moment over what the baseline had then. That who
wins, and all that is shown, follows from it, test_agreement.py shows.
"""

import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scoreboards import LONG, LONG_PAIRS, again, board_of, started, step, written

from backend.events import Conditions, Event, Fed, Finished, Served, Step
from backend.results.figures import figure
from backend.results.intervals import Ratio
from backend.results.result import Result, progress_of, result_of
from backend.types import ModelSpec

KV, PAIRS = written(0, LONG, 0.1), written(1, LONG_PAIRS, 0.1)
TENS = [list(range(i, i + 10)) for i in range(1, 61, 10)]
INT4 = asdict(ModelSpec(precision="int4"))
OTHER = [step(1, [7, 8], 0.1) if event is PAIRS[3] else event for event in PAIRS]


def raced(names: str, *events: Event) -> Result:
    """Of a race on a quiet machine."""
    return result_of(board_of(names, Conditions(0.0), *events))


def test_the_speed_up_is_of_the_moment_at_which_the_first_column_ends() -> None:
    """KV reuse writes 60 tokens at 0.1 s, the other one 60 in 30 passes of the same time: at its
    end, after 3 s, KV reuse had half as many.
    """
    result = raced("kv lookup", *KV, *PAIRS)
    base, quick = result.rows
    assert (result.finished, result.moment, result.leaders) == (True, pytest.approx(3.0), (1,))
    assert (base.amount, quick.amount) == pytest.approx((30, 60))
    assert quick.speedup.value == pytest.approx(2.0)
    assert quick.verdict == "faster"
    assert (quick.rate, quick.baseline_rate) == pytest.approx((20, 10))
    assert (quick.tokens_per_pass, quick.pass_time) == pytest.approx((2.0, 1.0))
    assert (base.verdict, base.speedup.value) == ("baseline", 1.0)
    assert (result.texts, quick.text) == ("same", "same")
    # Both read for a second: 7 s against 4 s is less than twice as fast.
    assert [row.whole_time for row in result.rows] == pytest.approx([0, 7 / 4])


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


def test_what_a_column_writes_after_the_finish_changes_nothing() -> None:
    results = [raced("kv lookup", *PAIRS, *KV[:n]) for n in (45, 55, len(KV))]
    assert [each.moment for each in results] == pytest.approx([3.0] * 3)
    assert len({each.rows[1].speedup for each in results}) == 1
    assert [each.leaders for each in results] == [(), (), (1,)]


@pytest.mark.parametrize(
    ("names", "events", "moment", "speedup", "verdict", "leaders", "texts"),
    [
        # A grammar's short answer is measured at its own end, and finishes no race.
        ("kv kv:grammar=person", written(1, LONG_PAIRS[:15], 0.1), 6.0, 2.0, "faster", (), ""),
        # Other weights finish no race, and win none.
        ("kv kv@int4", [started(1, **INT4), *OTHER[1:]], 6.0, 2.0, "faster", (), ""),
        ("kv lookup", OTHER, 6.0, 2.0, "faster", (), "changed"),
        # Below twenty tokens there is no ratio.
        ("kv lookup", written(1, LONG[:3], 0.4), 6.0, 0.0, "short", (), "changed"),
        # Six passes say nothing of how much they differ.
        ("kv lookup", written(1, TENS, 0.3), 1.8, 10 / 3, "short", (), "same"),
        # A column that did the baseline's work wins nothing.
        ("kv kv", written(1, LONG, 0.05), 3.0, 2.0, "same work", (), "same"),
        ("kv lookup", [*PAIRS[:22], Finished(1, "stopped", [])], 6.0, 2.0, "", (), "same"),
        ("lookahead lookup", PAIRS, 6.0, 0.0, "", (), "same"),
    ],
)
def test_what_a_second_column_comes_to(
    names: str,
    events: list[Event],
    moment: float,
    speedup: float,
    verdict: str,
    leaders: tuple[int, ...],
    texts: str,
) -> None:
    result = raced(names, *KV, *events)
    row = result.rows[1]
    assert result.moment == pytest.approx(moment)
    assert (row.speedup.value, row.verdict) == (pytest.approx(speedup), verdict)
    assert (result.leaders, result.texts) == (leaders, texts)


@pytest.mark.parametrize(("share", "doubt"), [(0.2, ""), (0.3, "busy"), (0.6, "noisy")])
def test_who_else_uses_the_machine_casts_doubt(share: float, doubt: str) -> None:
    result = result_of(board_of("kv lookup", *KV, *PAIRS, Conditions(share)))
    assert (result.doubt, result.rows[1].speedup.known) == (doubt, True)


@pytest.mark.parametrize(
    ("best", "close", "verdict", "slower"),
    [(0.05, (0.03, 0.07), "faster", 0.08), (0.09, (0.03, 0.16), "unclear", 0.097)],
)
def test_columns_that_are_not_told_apart_share_the_lead(
    best: float, close: tuple[float, float], verdict: str, slower: float
) -> None:
    """Passes take equally long in one, either time in the other; a third one is clearly slower."""
    chance = random.Random(2)
    steps = [step(2, block, chance.choice(close)) for block in LONG]
    events = [started(2), step(2, [0], 1.0), *steps, Finished(2, "token limit", [])]
    both = [*KV, *written(1, LONG, best), *written(3, LONG, slower)]
    result = raced("kv lookup lookahead speculative", *both, *events)
    assert set(result.leaders) == {1, 2}
    assert [row.verdict for row in result.rows[1:]] == ["faster", verdict, "faster"]


def program(column: int, seconds: float) -> list[Event]:
    fed, slot = Fed(column, [["fixed", "a given text: "]], 0.01), step(column, [1], seconds)
    return [started(column), *[fed, slot] * 10, Finished(column, "end of program", [])]


def test_a_program_is_measured_in_characters_with_its_prompt() -> None:
    result = raced("kv stateless", *program(0, 0.1), *program(1, 0.39))
    assert result.unit == "character"
    assert result.moment == pytest.approx(1.1)
    assert result.rows[1].speedup.value == pytest.approx(0.28, abs=0.03)


def test_progress_begins_with_the_first_token_and_what_a_grammar_forced_beside_it() -> None:
    """Other tokens of a first step took their time: a server's first chunk may have many."""
    first, later = step(0, [1, 2, 3], 1.0), (step(0, [4], 0.5), step(0, [5, 6], 1.0))
    ahead = replace(first, origins=["sampled", "forced", "forced"])
    all_forced = replace(first, origins=["forced"] * 3)
    for begun, amount in ((first, 0), (ahead, 2), (all_forced, 2)):
        commits = progress_of(board_of("kv", started(0), begun, *later).scores[0], "token")
        assert [each.clock for each in commits] == [0, 0.5, 1.5]
        assert [each.tokens for each in commits] == [amount, 1, 2]
    assert progress_of(board_of("kv").scores[0], "token") == []


def library(column: int, rounds: list[list[int]], seconds: float) -> list[Event]:
    """A library's column: what each round wrote and when, and nothing of rows or parts."""
    return [
        replace(each, rows=0, drafted=0, gaps=[], seconds={"total": each.seconds["total"]})
        if isinstance(each, Step)
        else each
        for each in written(column, rounds, seconds, {"engine": "openvino_genai"})
    ]


def test_a_column_that_runs_alone_sets_the_finish_once_it_has_run() -> None:
    """It waits for the others, and may have been quicker."""
    both = [*KV, *written(1, LONG, 0.08)]
    waiting = result_of(board_of("kv lookup openvino_genai", *both))
    assert (waiting.moment, waiting.leaders) == (pytest.approx(4.8), ())
    alone = library(2, LONG_PAIRS, 0.05)
    once = raced("kv lookup openvino_genai", *both, *alone)
    assert (once.moment, once.leaders) == (pytest.approx(1.5), ()), "nobody knows how sure it is"
    assert (once.rows[2].verdict, once.rows[2].speedup.known) == ("", False)
    result = raced("kv lookup openvino_genai", *both, *alone, again(2, LONG_PAIRS, 0.05))
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
    row = raced("kv transformers", *KV, *library(1, LONG_PAIRS, 0.15)).rows[1]
    assert (row.passes, row.tokens_per_pass) == (len(LONG_PAIRS), pytest.approx(2))
    assert (row.score.drafted, row.score.positions) == (0, []), "nobody says how much was guessed"
    assert row.speedup.known
    assert row.speedup.value == pytest.approx(4 / 3, rel=0.02)
    far = [started(1), Served(1, "network"), *library(1, LONG_PAIRS, 0.15)[1:]]
    row = raced("kv @a", *KV, *far).rows[1]
    assert row.tokens_per_pass == 0
    assert not row.speedup.known, "two machines have no common moment"


def test_a_text_that_came_at_once_finishes_no_race() -> None:
    """Nobody knows when its first token was there."""
    at_once = [started(1), step(1, range(61), 0.5), Finished(1, "token limit", [])]
    assert raced("kv @a", *KV, *at_once).moment == pytest.approx(6.0)
