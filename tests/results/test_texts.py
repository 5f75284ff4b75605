"""Texts are the same if all of them is; who promises a text is held to it. That classes fit the
texts whatever the columns, test_agreement.py shows.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from types import EllipsisType
from typing import Any

import pytest
from scoreboards import board_of, started, step

from backend.events import Event, Finished, Reason
from backend.results.texts import Comparison, Sameness, compare, texts_of
from backend.strategies.column import parse_column
from backend.types import ModelSpec


def wrote(column: int, tokens: Sequence[int], reason: Reason, **facts: Any) -> list[Event]:
    """A column that has written these, one by one, and ended so."""
    steps = (step(column, [token], 1.0, gap=0.5) for token in tokens)
    return [replace(started(column), **facts), *steps, Finished(column, reason, [])]


@pytest.mark.parametrize(
    ("ours", "reason", "parted", "whole"),
    [
        ([1, 2, 3], "end of text", None, True),
        ([1, 2], "context full", 2, True),
        ([1, 2], "token limit", 2, True),
        ([1, 2, 3, 4], "end of text", 3, True),
        ([1, 9, 3], "end of text", 1, True),
        ([1, 2], "photo finish", None, False),
        ([1, 2], "stopped", None, False),
        ([1, 9], "stopped", 1, False),
        ([1, 2, 3, 4], "stopped", 3, False),
    ],
)
@pytest.mark.parametrize("tokenizer", ["one tokenizer", ""])
def test_a_text_that_ended_shorter_is_another_and_one_that_was_cut_is_the_same_so_far(
    ours: list[int], reason: Reason, parted: int | None, tokenizer: str, *, whole: bool
) -> None:
    """By tokens, by characters if the ids are not known, and from both sides."""
    if reason == "token limit" and not tokenizer:
        parted, whole = None, False  # they do not count alike
    board = board_of("lookup lookup", *wrote(0, [1, 2, 3], "end of text", tokenizer=tokenizer))
    for event in wrote(1, ours, reason, tokenizer=tokenizer):
        board.add(event)
    for scores in (board.scores, board.scores[::-1]):
        comparison = compare(*scores)
        assert (comparison.parted, comparison.whole) == (parted is not None, whole)
        assert parted is None or comparison.agreed == parted
        assert comparison.unit == ("token" if tokenizer else "character")


def test_texts_alike_to_the_letter_are_equal_whichever_tokens_spell_them() -> None:
    """One ended with the end-of-text token, the other since its grammar had ended."""
    longer, end = wrote(0, [1, 2, 9], "end of text"), replace(step(0, [9], 1.0), spans=[])
    longer[3] = end
    board = board_of("kv grammar", *longer, *wrote(1, [1, 2], "end of text"))
    assert texts_of(board)[1].sameness == "same"


GRAMMAR = "kv kv:grammar=date lookup:grammar=date"
INT8 = "kv kv@int8 lookup@int8"
DRAWN = "kv speculative:draft=fake-draft,promise=distribution"

Texts = list[list[int | EllipsisType]]


@pytest.mark.parametrize(
    ("names", "texts", "expected"),
    [
        ("lookup kv", [[1, 2], [1, 2]], [("same", 1), ("", 1)]),
        ("kv lookup", [[1, 2], [1, 3]], [("", 0), ("changed", 1)]),
        (DRAWN, [[1, 2], [1, 3]], [("", 0), ("different", 1)]),
        # One is held to the plain column under its grammar, or on its weights.
        (GRAMMAR, [[1, 2], [7, 8], [7, 9]], [("", 0), ("different", 1), ("changed", 2)]),
        (GRAMMAR, [[1, 2], [], [7, 9]], [("", 0), ("", None), ("different", 2)]),
        (INT8, [[1, 2], [1, 8], [1, 9]], [("", 0), ("different", 1), ("changed", 2)]),
        (INT8, [[1, 2], [1, 2], [1, 9]], [("", 0), ("same", 0), ("changed", 2)]),
        # A text that has just begun is of the class of whom it must match.
        (GRAMMAR, [[1, 2], [1, 3], [1, ...]], [("", 0), ("different", 1), ("so far", 1)]),
        (GRAMMAR, [[1, 2], [1, 3], [1, 2, ...]], [("", 0), ("different", 1), ("changed", 0)]),
        # Who is ahead of its peer has not changed another one's text.
        (GRAMMAR, [[1, 2], [1, ...], [1, 3, ...]], [("", 0), ("so far", 0), ("different", 2)]),
    ],
)
def test_who_promises_a_text_is_held_to_it(
    names: str, texts: Texts, expected: list[tuple[Sameness, int | None]]
) -> None:
    """`...`: it still writes."""
    board = board_of(names)
    for i, (name, text) in enumerate(zip(names.split(), texts, strict=True)):
        column = parse_column(name)
        facts = {"spec": asdict(column.target(ModelSpec())), "lossless": column.lossless(1.0)}
        tokens = [token for token in text if isinstance(token, int)]
        events = wrote(i, tokens, "token limit", **facts)
        for event in events[:-1] if ... in text else events:
            board.add(event)
    assert [(text.sameness, text.like) for text in texts_of(board)] == expected


def test_a_changed_text_says_where_and_by_how_much() -> None:
    board = board_of("kv lookup", *wrote(0, [7, 8], "token limit"))
    for event in wrote(1, [7, 9], "token limit"):
        board.add(event)
    changed = texts_of(board)[1]
    assert changed.other == 0
    assert changed.comparison == Comparison(1, "token", parted=True, whole=True, gap=0.5)
