"""How columns compare: differences, verdict sentences, and a baseline that may be missing."""

import random
from collections.abc import Sequence
from dataclasses import asdict

import pytest
from boards import board_of, started, step, written

from backend.events import Failed, Finished, Prefilled, Preparing, Started, Step
from backend.results.result import result_of
from backend.results.scoreboard import Difference, Scoreboard
from backend.results.sentences import comparison
from backend.strategies.column import default_column, parse_column
from backend.types import ModelSpec

SPEC = asdict(ModelSpec())
KV, LOOKUP, GRAMMAR = (default_column(name) for name in ("kv", "lookup", "grammar"))


def write(
    board: Scoreboard,
    column: int,
    tokens: list[int],
    gaps: list[float] | None = None,
    spec: dict[str, str] | None = None,
) -> None:
    """Let a column commit tokens one by one, a second each, twice as fast in column 1."""
    board.add(Started(column, 5, "m", "one tokenizer", spec or SPEC))
    for token, gap in zip(tokens, gaps or [1.0] * len(tokens), strict=True):
        total = 0.5 if column == 1 else 1.0
        seconds = {"total": total, "draft": 0.0, "mask": 0.0, "forward": total, "rest": 0.0}
        board.add(Step(column, [token], ["sampled"], [gap], [], 1, 0, 0, seconds))


def verdict(board: Scoreboard, index: int) -> str:
    """What is said of the column's text."""
    return comparison(board, result_of(board).rows[index])


def sameness(board: Scoreboard, index: int) -> str:
    return result_of(board).rows[index].text


def end(board: Scoreboard, *columns: int) -> None:
    for column in columns:
        board.add(Finished(column, "token limit", []))


def test_identical_columns_say_so_and_how_far_that_is_known() -> None:
    board = Scoreboard((KV, LOOKUP, default_column("stateless")))
    assert verdict(board, 1) == ""
    write(board, 0, [1, 2, 3])
    assert verdict(board, 1) == ""
    write(board, 1, [1, 2])
    assert verdict(board, 1) == "identical to KV reuse (2 tokens)"
    write(board, 1, [3])
    assert verdict(board, 1) == "identical to KV reuse (3 tokens)"
    write(board, 2, [1])
    end(board, 0, 1, 2)
    assert verdict(board, 1) == "identical to KV reuse (3 tokens)"
    assert verdict(board, 2) == "identical to KV reuse (1 token)"
    assert verdict(board, 0) == "", "the baseline is not compared with itself"
    assert board.difference(1) is None
    board.add(Finished(0, "stopped", []))
    assert verdict(board, 1) == "identical to KV reuse (3 tokens)"


def test_a_difference_names_a_precision_that_allows_for_it() -> None:
    board = Scoreboard((KV, LOOKUP))
    spec = ModelSpec(engine="torch", precision="bf16").parts
    for column, third in ((0, 3), (1, 9)):
        write(board, column, [1, 2, third], spec=spec)
    end(board, 0, 1)
    assert "bf16 rounds" in verdict(board, 1)


def test_a_difference_names_the_token_and_the_baselines_gap_there() -> None:
    board = Scoreboard((LOOKUP, KV))
    write(board, 1, [1, 2, 3, 4], [9.0, 8.0, 0.001234, 7.0])
    write(board, 0, [1, 2, 9, 4], [9.0, 8.0, 5.0, 7.0])
    end(board, 0, 1)
    assert board.difference(0) == Difference(2, 0.001234)
    assert verdict(board, 0) == "differs from KV reuse at token 3 (scores 0.0012 apart)"


@pytest.mark.parametrize("baseline", ["missing", "failed", "silent"])
def test_without_a_baseline_nothing_is_claimed(baseline: str) -> None:
    board = Scoreboard((LOOKUP if baseline == "missing" else KV, LOOKUP))
    if baseline != "silent":
        write(board, 0, [1, 2, 3])
    write(board, 1, [1, 9, 3])
    if baseline == "failed":
        board.add(Failed(0, "It broke."))
    assert verdict(board, 1) == ""
    assert board.difference(1) is None
    assert result_of(board).rows[1].speedup.value == 0
    assert (board.baseline_index is None) == (baseline != "silent")


def test_a_race_has_ended_when_every_column_has_in_whatever_way() -> None:
    board = Scoreboard((KV, LOOKUP, GRAMMAR))
    board.add(Finished(0, "stopped", []))
    board.add(Finished(1, "end of text", []))
    assert not board.ended
    board.add(Failed(2, "It broke."))
    assert board.ended
    # What is prepared is shown until something happens.
    board.add(Preparing("Loading..."))
    assert board.preparing == "Loading..."
    board.add(Prefilled(0, 1, 2, 0.1))
    assert board.preparing == ""


def test_columns_with_one_grammar_are_compared_with_the_plain_one_among_them() -> None:
    names = ("kv", "lookup:grammar=date", "grammar:grammar=date", "grammar", "lookup")
    board = Scoreboard([parse_column(name) for name in names])
    for column in range(5):
        board.add(Started(column, 5, "m", "one tokenizer", SPEC))
    assert [board.reference(i) for i in range(5)] == [None, 2, 0, 0, 0]
    assert [board.must_match(i) for i in range(5)] == [False, True, False, False, True]
    write(board, 0, [1, 2, 3])
    write(board, 2, [1, 5, 6])
    write(board, 1, [1, 5, 7])
    assert verdict(board, 1).startswith("differs from Grammar (grammar=date) at token 3")
    assert verdict(board, 2) == "differs from KV reuse at token 2"
    board.add(Failed(2, "It broke."))
    assert board.reference(1) == 0
    assert not board.must_match(1)


def test_columns_with_one_title_are_told_apart() -> None:
    names = ("kv", "kv:grammar=date", "lookup:k=2", "lookup:k=2", "speculative")
    board = Scoreboard([parse_column(name) for name in names])
    assert [board.name(i) for i in range(5)] == [
        "KV reuse",
        "KV reuse (grammar=date)",
        "Prompt lookup (k=2), column 3",
        "Prompt lookup (k=2), column 4",
        "Speculative",
    ]


def test_plain_kv_reuse_is_the_baseline_wherever_it_stands() -> None:
    """On the race's own target if it runs there: another one is what it is compared with."""
    names = ("kv:grammar=date", "kv@int8", "lookup", "kv")
    board = Scoreboard([parse_column(name) for name in names])
    for failing, baseline in ((2, 3), (3, 1), (1, 0)):
        board.add(Failed(failing, "It broke."))
        assert board.baseline_index == baseline


INT8 = SPEC | {"precision": "int8"}


def test_columns_on_other_weights_may_differ_and_the_sentence_says_what_is_other() -> None:
    board = Scoreboard([KV, parse_column("kv@int8"), parse_column("lookup@int8")])
    write(board, 0, [1, 2, 3, 4])
    write(board, 1, [1, 2, 9, 9], spec=INT8, gaps=[0.03] * 4)
    write(board, 2, [1, 2, 9, 8], spec=INT8)
    assert not board.must_match(1)
    assert sameness(board, 1) == "different"
    assert verdict(board, 1) == "differs from KV reuse at token 3"
    assert board.reference(2) == 1, "the plain column on the same weights"
    assert board.must_match(2)
    assert sameness(board, 2) == "changed"
    assert "differs from KV reuse (int8) at token 4" in verdict(board, 2)
    board.add(Failed(1, "It broke."))
    assert board.reference(2) == 0


def test_the_same_text_from_other_weights_is_identical() -> None:
    board = Scoreboard([KV, parse_column("kv@torch/CUDA")])
    write(board, 0, [1, 2, 3])
    write(board, 1, [1, 2, 3], spec=SPEC | {"engine": "torch", "device": "CUDA"})
    end(board, 0, 1)
    assert verdict(board, 1) == "identical to KV reuse (3 tokens)"
    assert (sameness(board, 1), board.keeps_text(1)) == ("same", False)


@pytest.mark.parametrize("tokenizer", ["", "another"])
def test_without_a_common_tokenizer_no_token_is_compared(tokenizer: str) -> None:
    board = Scoreboard([KV, LOOKUP])
    write(board, 0, [1, 2, 3])
    write(board, 1, [1, 9, 3])
    board.add(Started(1, 5, "m", tokenizer, SPEC))
    assert verdict(board, 1).startswith("not compared with KV reuse")
    assert (board.difference(1), sameness(board, 1)) == (None, "")


@pytest.mark.parametrize(
    ("costs", "verdict"),
    [
        ((0.05, 0.05), "faster"),
        ((0.08, 0.11), "faster"),
        ((0.06, 0.14), "unclear"),
        ((0.11, 0.11), "slower"),
    ],
)
def test_faster_and_slower_are_said_of_what_is_shown(costs: Sequence[float], verdict: str) -> None:
    """The second column's passes take either of two costs, the first's 0.1 s. A column that did
    what KV reuse does was called slower, at 0.57 of its speed, as the machine had wobbled.
    """
    chance = random.Random(1)
    blocks = [[token] for token in range(1, 61)]
    events = [step(1, block, chance.choice(costs)) for block in blocks]
    events = [*events, Finished(1, "token limit", [])]
    board = board_of("kv lookup", *written(0, blocks, 0.1), started(1), step(1, [0], 1.0), *events)
    assert result_of(board).rows[1].verdict == verdict
