"""From a column's run to its code: the library's column, the settings in force, and what visitors
are handed.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from boards import board_of, written
from hypothesis import given
from hypothesis import strategies as st

from backend.decoding.seams import UNDECIDED
from backend.errors import DerbyError
from backend.events import Decided
from backend.export.production import (
    LIBRARIES,
    Snippet,
    snippet,
    usual,
    usual_library,
)
from backend.results.scoreboard import Score, Scoreboard
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request, Sampling

GGUF = ModelSpec("./a.gguf")
TOKENS = [[n % 20] for n in range(60)]


@pytest.mark.parametrize(
    ("column", "library", "theirs"),
    [
        ("kv", "transformers", "transformers"),
        ("kv", "openvino-genai", "openvino_genai"),
        ("kv", "llama.cpp", "llamacpp"),
        ("lookup:k=6", "transformers", "transformers:lookup=6"),
        ("lookup:k=6", "openvino-genai", "openvino_genai:lookup=6"),
        ("lookup:k=6", "llama.cpp", "llamacpp:spec=ngram-simple,k=6"),
        ("speculative:draft=a/b,k=3", "transformers", "transformers:draft=a/b,k=3"),
        ("speculative:draft=int8-exact", "openvino-genai", "openvino_genai:draft=int8,k=8"),
        ("kv@torch/bf16:model=a/b", "transformers", "transformers@bf16/CPU:model=a/b"),
        ("kv@torch/bf16:model=a/b", "openvino-genai", "openvino_genai:model=a/b"),
        ("lookup@int4-exact:k=2", "openvino-genai", "openvino_genai@int4/CPU:lookup=2"),
        ("kv:grammar=date", "llama.cpp", "llamacpp:grammar=date"),
        ("llamacpp:spec=ngram-mod", "llama.cpp", "llamacpp:spec=ngram-mod"),
        ("llamacpp:spec=ngram-simple,k=5", "transformers", "transformers:lookup=5"),
        ("openvino_genai:draft=a/b,k=3", "transformers", "transformers:draft=a/b,k=3"),
    ],
)
def test_a_column_has_its_like_in_a_library(column: str, library: str, theirs: str) -> None:
    made = code_of(column, ran(), library, GGUF if library == "llama.cpp" else ModelSpec()).column
    assert str(made) == str(parse_column(theirs)) == theirs


def ran(*decisions: dict[str, Any]) -> Score:
    """A column whose drafter decided these settings, one after another."""
    score = Score(state="done", steps=30)
    for settings in decisions:
        score.add(Decided(0, settings, 1.5, "", []))
    return score


def code_of(
    column: str, score: Score, library: str = "transformers", target: ModelSpec | None = None
) -> Snippet:
    board = Scoreboard([parse_column(column)])
    board.scores[0] = score
    return snippet(board, 0, Request("Hi"), target or ModelSpec(), library)


@given(st.integers(1, 16), st.integers(1, 16), st.sampled_from(["lookup", "speculative"]))
def test_k_is_what_the_run_decided_last(first: int, last: int, name: str) -> None:
    """As if it had been set by hand."""
    for library in LIBRARIES:
        found = code_of(name, ran({"k": first}, {"k": last}), library)
        assert found == code_of(f"{name}:k={last}", ran(), library)


@pytest.mark.parametrize("column", ["lookup", "speculative:draft=int4", "lookahead"])
def test_where_plain_decoding_was_decided_it_is_plain_decoding(column: str) -> None:
    score = ran()
    score.decision = replace(UNDECIDED, plain=True)
    for library in LIBRARIES:
        found = code_of(column, score, library)
        assert found.code == code_of("kv", ran(), library).code
        assert "plain decoding" in found.note


def test_what_differs_from_the_run_is_said() -> None:
    board, warm = board_of("kv transformers kv@int8"), Request("Hi", sampling=Sampling(1.0))
    notes = [
        [bool(snippet(board, i, request, ModelSpec(), "transformers").note) for i in range(3)]
        for request in (Request("Hi"), warm)
    ]
    assert notes == [[False, False, True], [True, False, True]]


@pytest.mark.parametrize(
    ("columns", "costs", "chosen"),
    [
        ("kv lookup speculative", (0.1, 0.08, 0.05), 1),
        ("kv lookup speculative:draft=a/b lookahead", (0.1, 0.08, 0.05, 0.04), 2),
        ("kv openvino_genai:lookup=4 lookup", (0.1, 0.05, 0.08), 1),
        ("kv lookup lookahead", (0.1, 0.12, 0.05), 0),
        ("kv grammar lookup", (0.1, 0.05, 0.08), 2),
        ("kv lookup", (0.1, 0.2), 0),
    ],
)
def test_production_begins_at_the_fastest_column_that_some_library_has_code_for(
    columns: str, costs: Sequence[float], chosen: int
) -> None:
    events = [e for i, cost in enumerate(costs) for e in written(i, TOKENS, cost)]
    assert usual(board_of(columns, *events), Request("Hi"), ModelSpec()) == chosen


def test_code_whose_column_was_in_the_race_says_how_that_did() -> None:
    columns = "kv lookup:k=4 transformers:lookup=4 transformers@bf16"
    costs = (0.1, 0.08, 0.05, 0.04)
    events = [e for i, cost in enumerate(costs) for e in written(i, TOKENS, cost)]
    board = board_of(columns, *events)

    def raced(index: int, library: str) -> str:
        return snippet(board, index, Request("Hi"), ModelSpec(), library).raced

    assert "2.00\u00d7" in raced(1, "transformers")
    assert raced(2, "transformers") == raced(1, "transformers")
    assert "2.50\u00d7" in raced(3, "transformers")
    assert raced(0, "transformers") == ""  # it was in it in another precision
    assert raced(1, "openvino-genai") == raced(1, "vLLM") == ""


def test_whatever_cannot_be_written_is_a_sentence() -> None:
    board = board_of("kv lookup @http://a", *written(0, [[n] for n in range(16)], 0.1))
    for library in ("../x", {"a": 1}, ["vLLM"], 0):
        with pytest.raises(DerbyError, match="no library"):
            snippet(board, 0, Request("Hi"), ModelSpec(), library)  # pyright: ignore[reportArgumentType]
    board.scores[1].state = "failed"
    for index, prompt in enumerate(('{{gen "name"}}', "Hi", "Hi")):
        with pytest.raises(DerbyError):
            snippet(board, index, Request(prompt), ModelSpec(), "transformers")


def test_the_library_to_begin_with_is_one_that_can_do_what_the_column_did() -> None:
    board = board_of("kv kv:grammar=person", *written(0, [[n] for n in range(16)], 0.1))
    request, target = Request("Hi"), ModelSpec()
    assert not snippet(board, 1, request, target, "transformers").code
    assert usual_library(board, 1, request, target) == "openvino-genai"
