"""Texts are the same if all of them is; they fall into classes, whatever the order of the columns;
who promises a text is held to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import permutations

import pytest
from scoreboards import SPEC, board_of, started, step

from backend.events import Event, Failed, Finished, Reason, Step
from backend.results.scoreboard import Scoreboard
from backend.results.texts import Comparison, Sameness, compare, texts_of
from backend.types import ModelSpec

INT8 = asdict(ModelSpec(precision="int8"))


def wrote(
    column: int,
    tokens: Sequence[int],
    reason: Reason | None = "token limit",
    spec: Mapping[str, str] = SPEC,
    tokenizer: str = "one tokenizer",
) -> list[Event]:
    """A column that has written these, one by one, and ended so; None: it still writes."""
    begun = replace(started(column, **spec), tokenizer=tokenizer)
    end = [Finished(column, reason, [])] if reason else []
    return [begun, *(step(column, [token], 1.0, gap=0.5) for token in tokens), *end]


def alike(board: Scoreboard) -> list[tuple[Sameness, int | None]]:
    return [(text.sameness, text.like) for text in texts_of(board)]


@pytest.mark.parametrize(
    ("ours", "reason", "theirs", "parted", "whole"),
    [
        ([1, 2, 3], "end of text", [1, 2, 3], None, True),
        ([1, 2], "end of text", [1, 2, 3], 2, True),
        ([1, 2], "context full", [1, 2, 3], 2, True),
        ([1, 2], "token limit", [1, 2, 3], 2, True),
        ([1, 2, 3, 4], "end of text", [1, 2, 3], 3, True),
        ([1, 9, 3], "end of text", [1, 2, 3], 1, True),
        ([1, 2], "photo finish", [1, 2, 3], None, False),
        ([1, 2], "stopped", [1, 2, 3], None, False),
        ([1, 2], None, [1, 2, 3], None, False),
        ([1, 9], "stopped", [1, 2, 3], 1, False),
        ([1, 2, 3, 4], "stopped", [1, 2, 3], 3, False),
    ],
)
def test_a_text_that_ended_shorter_is_another_and_one_that_was_cut_is_the_same_so_far(
    ours: list[int], reason: Reason | None, theirs: list[int], parted: int | None, *, whole: bool
) -> None:
    """110 tokens and a grammar's 74 were "identical (74 tokens)". It holds by tokens, by characters
    if the ids are not known, and from both sides.
    """
    for tokenizer in ("one tokenizer", ""):
        board = board_of("lookup lookup", *wrote(0, theirs, "end of text", tokenizer=tokenizer))
        limit: Reason | None = "end of text" if reason == "token limit" else reason
        for event in wrote(1, ours, reason if tokenizer else limit, tokenizer=tokenizer):
            board.add(event)
        one, other = (compare(*scores) for scores in (board.scores[::-1], board.scores))
        assert one.whole == other.whole == whole
        for each in (one, other):
            assert (each.agreed if each.parted else None) == parted


def test_a_limit_of_tokens_is_the_same_only_for_those_who_count_alike() -> None:
    board = board_of("kv @a", *wrote(0, [1, 2, 3]), *wrote(1, [1, 2], tokenizer=""))
    assert alike(board)[1] == ("so far", 0)


def test_texts_alike_to_the_letter_are_equal_whichever_tokens_spell_them() -> None:
    """One ended with the end-of-text token, the other since its grammar had ended."""
    end = replace(step(0, [9], 1.0), spans=[])
    events = [*wrote(0, [1, 2], None), end, Finished(0, "end of text", [])]
    board = board_of("kv grammar", *events, *wrote(1, [1, 2], "end of text"))
    assert alike(board)[1] == ("same", 0)


def test_each_text_is_of_a_class_and_names_the_first_column_of_it() -> None:
    """Three columns wrote the same under a grammar: one was "different", two "the same"."""
    names = "kv grammar:grammar=date speculative:grammar=date lookup:grammar=date lookup"
    events = [each for i in (1, 2, 3) for each in wrote(i, [7, 8], "end of text")]
    board = board_of(names, *wrote(0, [1, 2]), *events, *wrote(4, [1, 2]))
    assert alike(board) == [("", 0), ("different", 1), ("same", 1), ("same", 1), ("same", 0)]
    assert [text.other for text in texts_of(board)] == [None, 0, 1, 1, 0]


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_classes_do_not_depend_on_the_order_of_the_columns(order: tuple[int, ...]) -> None:
    names = ("kv", "speculative:grammar=date", "lookup:grammar=date", "lookup")
    texts = ([1, 2], [7, 8], [7, 8], [1, 2])
    events = [each for at, i in enumerate(order) for each in wrote(at, texts[i], "end of text")]
    likes = [like for _, like in alike(board_of(" ".join(names[i] for i in order), *events))]
    at = [order.index(i) for i in range(4)]
    assert likes[at[0]] == likes[at[3]] != likes[at[1]] == likes[at[2]]
    assert likes[at[0]] == at[0], "the baseline's class is called after it"


def test_a_column_under_a_grammar_is_held_to_the_plain_one_under_it() -> None:
    names = "kv speculative:grammar=date kv:grammar=date lookup"
    board = board_of(names, *wrote(0, [1, 2]), *wrote(1, [7, 9]), *wrote(2, [7, 8]))
    changed = texts_of(board)[1]
    assert (changed.sameness, changed.other) == ("changed", 2)
    assert changed.comparison
    assert changed.comparison == Comparison(1, "token", parted=True, whole=True, gap=0.5)
    board.add(Failed(2, "It broke."))
    assert alike(board) == [("", 0), ("different", 1), ("", None), ("", None)]


def test_columns_on_other_weights_may_differ_and_are_held_to_one_another() -> None:
    board = board_of(
        "kv kv@int8 lookup@int8",
        *wrote(0, [1, 2, 3, 4]),
        *wrote(1, [1, 2, 9, 9], spec=INT8),
        *wrote(2, [1, 2, 9, 8], spec=INT8),
    )
    assert alike(board) == [("", 0), ("different", 1), ("changed", 2)]
    same = board_of("kv kv@int8", *wrote(0, [1]), *wrote(1, [1], spec=INT8))
    assert alike(same)[1] == ("same", 0)


def test_who_promises_a_distribution_may_write_another_text() -> None:
    ours = wrote(1, [1, 9])
    board = board_of("kv lookup", *wrote(0, [1, 2]), replace(started(1), lossless=False), *ours[1:])
    assert alike(board)[1] == ("different", 1)


@pytest.mark.parametrize("baseline", ["failed", "silent", "missing"])
def test_one_text_is_compared_with_nothing(baseline: str) -> None:
    events = [Failed(0, "It broke.")] if baseline == "failed" else []
    name = "lookahead" if baseline == "missing" else "kv"
    board = board_of(f"{name} lookup", *events, *wrote(1, [1, 9]))
    assert alike(board) == [("", None), ("", 1)]


def test_texts_of_other_tokenizers_are_compared_by_character() -> None:
    for tokens, sameness in (([1, 2], "same"), ([1, 3], "changed")):
        events = wrote(1, tokens, "end of text", tokenizer="another")
        board = board_of("kv lookup", *wrote(0, [1, 2], "end of text"), *events)
        text = texts_of(board)[1]
        assert text.sameness == sameness
        assert text.comparison
        assert text.comparison.unit == "character"


def test_a_text_that_has_just_begun_is_in_the_class_of_whom_it_must_match() -> None:
    names = "kv kv:grammar=date lookup:grammar=date"
    board = board_of(names, *wrote(0, [1, 2]), *wrote(1, [1, 3]), *wrote(2, [1], None))
    assert alike(board)[2] == ("so far", 1)
    board.add(Step(2, [2], ["sampled"], [1.0], [["sampled", "c"]], 1, 0, 0, {"total": 1.0}))
    assert alike(board)[2] == ("changed", 0)


def test_two_that_go_on_from_a_short_text_in_two_ways_are_not_the_same() -> None:
    """Both were like a baseline that had been stopped: all texts were "identical"."""
    shorter = wrote(0, [1], "stopped")
    board = board_of("kv lookup speculative", *shorter, *wrote(1, [1, 2]), *wrote(2, [1, 3]))
    assert alike(board) == [("", 0), ("so far", 0), ("changed", 2)]
    assert texts_of(board)[2].other == 1


def test_a_column_that_is_ahead_of_its_peer_has_not_changed_another_one_s_text() -> None:
    events = [*wrote(0, [1, 2]), *wrote(1, [1], None), *wrote(2, [1, 3], None)]
    board = board_of("kv kv:grammar=date lookup:grammar=date", *events)
    assert alike(board) == [("", 0), ("so far", 0), ("different", 2)]
