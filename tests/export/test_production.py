"""From a column's run to its code: the library's column, the settings in force, and what visitors
are handed.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from boards import board_of, written
from hypothesis import given
from hypothesis import strategies as st

from backend.decoding.drafter import UNDECIDED
from backend.errors import DerbyError
from backend.events import Decided, Event
from backend.export.production import LIBRARIES, Snippet, library_column, snippet, usual
from backend.racing.commands import Command
from backend.racing.hosts.inline import InlineHost
from backend.racing.race import Race
from backend.records.file import as_bytes
from backend.records.record import recorded
from backend.results.metrics import Score, State
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import RACE_MODEL, default_column, parse_column
from backend.types import ModelSpec, Request, Sampling
from backend.web.controller import Controller
from backend.web.lineup_editor import editor_state
from backend.web.offer import Offer, Runtime
from backend.web.visitors import Visitors

FAKE = ModelSpec("fake", "fake")
MENU = Offer((Runtime("fake", "Fake", ("fp32",), ("CPU",)),), ("fake",))


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
        ("speculative:draft=trained,k=3", "openvino-genai", "openvino_genai:lookup=3"),
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
    made = library_column(parse_column(column), library, ModelSpec(), UNDECIDED)
    assert str(made) == str(parse_column(theirs)) == theirs


def ran(*decisions: dict[str, Any], why: str = "", steps: int = 30, state: State = "done") -> Score:
    """A column of so many steps whose drafter decided these settings, one after another."""
    score = Score(state=state, steps=steps)
    for settings in decisions:
        score.add(Decided(0, settings, 1.5, why, []))
    return score


def code_of(column: str, score: Score, library: str = "transformers") -> Snippet:
    board = Scoreboard([parse_column(column)])
    board.scores[0] = score
    return snippet(board, 0, Request("Hi"), ModelSpec(), library)


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
        assert "Guessing gained nothing" in found.note


def test_what_differs_from_the_run_is_said() -> None:
    assert code_of("lookup", ran({"k": 4}, why="auto guessed 4; it paid")).note == "Auto guessed 4."
    assert "did not finish" in code_of("lookup", ran(state="stopped")).note
    assert "too little" in code_of("lookup", ran(steps=1)).note
    for column in ("kv", "lookup:k=7", "lookup:auto=false", "transformers:lookup=3"):
        for score in (ran(), ran(steps=1), ran(state="stopped")):
            assert code_of(column, score).note == ""
    assert "trained draft" in code_of("speculative:draft=trained", ran()).note
    with pytest.raises(DerbyError, match=r"Prompt lookup \(k=3\) failed in the last race"):
        code_of("lookup:k=3", ran(state="failed"))
    board, warm = Scoreboard([default_column("kv")]), Request("Hi", sampling=Sampling(1.0))
    assert "same seed" in snippet(board, 0, warm, ModelSpec(), "transformers").note


@pytest.mark.parametrize(
    ("columns", "costs", "chosen"),
    [
        ("kv lookup speculative", (0.1, 0.08, 0.05), 2),
        ("kv lookup speculative lookahead", (0.1, 0.05, 0.08, 0.04), 1),
        ("kv openvino_genai:lookup=4 lookup", (0.1, 0.05, 0.08), 1),
        ("kv lookup lookahead", (0.1, 0.12, 0.05), 0),
        ("kv lookup", (0.1, 0.2), 0),
    ],
)
def test_production_begins_at_the_fastest_column_that_some_library_has_code_for(
    columns: str, costs: Sequence[float], chosen: int
) -> None:
    events = [e for i, cost in enumerate(costs) for e in written(i, [[n] for n in range(16)], cost)]
    assert usual(board_of(columns, *events), Request("Hi"), ModelSpec()) == chosen


def test_code_whose_column_was_in_the_race_says_how_that_did() -> None:
    columns = "kv lookup:k=4 transformers:lookup=4 transformers@bf16"
    costs = (0.1, 0.08, 0.05, 0.04)
    events = [e for i, cost in enumerate(costs) for e in written(i, [[n] for n in range(16)], cost)]
    board = board_of(columns, *events)

    def raced(index: int, library: str) -> str:
        return snippet(board, index, Request("Hi"), ModelSpec(), library).raced

    assert "2.00\u00d7" in raced(1, "transformers")
    assert raced(2, "transformers") == raced(1, "transformers")
    assert "2.50\u00d7" in raced(3, "transformers")
    assert raced(0, "transformers") == ""  # it was in it in another precision
    assert raced(1, "openvino-genai") == raced(1, "vLLM") == ""


def after(race: Race, menu: Offer = MENU) -> Controller:
    """The controller once the visitor "me" has run the race."""
    visitors = Visitors(Inside())

    async def watched() -> None:
        async for _ in visitors.watch("me", race):
            pass

    asyncio.run(watched())
    return Controller(visitors, menu)


class Inside(InlineHost):
    """Runs a race of any models on the fake ones."""

    def stream(self, command: Command, stopped: Callable[[], bool]) -> Iterator[Event]:
        assert isinstance(command, Race)
        columns = tuple(
            column.with_settings({"draft": "fake-draft"}).on(RACE_MODEL)
            if column.name == "speculative"
            else column.on(RACE_MODEL)
            for column in command.columns
        )
        return super().stream(replace(command, target=FAKE, columns=columns), stopped)


COLUMNS = (default_column("kv"), parse_column("lookup:k=5"))


def test_a_visitor_gets_the_code_of_their_last_race_and_can_race_it() -> None:
    request = Request('it\'s "so"\n</script>', 16)
    desk = after(Race(request, COLUMNS, FAKE))
    label = COLUMNS[1].label
    assert desk.on_show("me")[0] == ["KV reuse", label]
    for library in LIBRARIES:
        assert desk.production("me", label, library).code or library == "llama.cpp"
        assert desk.production("me", "Prompt lookup", library) == desk.production(
            "me", label, library
        )
    assert "prompt_lookup_num_tokens=5" in desk.production("me", label, "transformers").code
    assert desk.with_code("me", "kv\n", label, "transformers") == "kv\ntransformers:lookup=5"
    for lineup, library in (("kv", "vLLM"), ("kv", "nothing"), ("kv\n" * 64, "transformers")):
        with pytest.raises(DerbyError):
            desk.with_code("me", lineup, label, library)


def test_the_library_on_show_gives_way_to_one_that_can_do_what_the_column_did() -> None:
    columns = (default_column("kv"), parse_column("grammar:grammar=person"))
    desk = after(Race(Request("Hi", 16), columns, FAKE))
    label = columns[1].label
    assert not desk.production("me", label, "transformers").code
    assert desk.library("me", label, "transformers") == "openvino-genai"
    assert desk.library("me", "KV reuse", "vLLM") == "vLLM"
    assert desk.production("me", "KV reuse", desk.library("me", "KV reuse", None)).code
    assert desk.library("you", label, "vLLM") == "vLLM"
    assert desk.on_show("me") == (["KV reuse", label], "KV reuse")


def test_anything_else_is_a_sentence() -> None:
    desk = after(Race(Request("Hi", 4), COLUMNS, FAKE))
    asked: list[tuple[str, Any, Any, str]] = [
        ("you", "Prompt lookup", "vLLM", "no column 'Prompt lookup'"),
        ("me", "Lookahead", "vLLM", "no column 'Lookahead'"),
        ("me", ["KV reuse"], "vLLM", "no column"),
        ("me", None, None, "no column None"),
        ("me", "KV reuse", "../x", "no code for '../x'"),
        ("me", "KV reuse", {"a": 1}, "no code for"),
        ("me", "KV reuse", ["vLLM"], "no code for"),
        ("me", "KV reuse", 0, "no code for 0"),
    ]
    program = after(Race(Request('Name: {{gen "name"}}', 16), COLUMNS, FAKE))
    for visitor, label, library, sentence in asked:
        found = desk.production(visitor, label, library)
        assert found.code == ""
        assert sentence in found.note
        assert "\n" not in found.note
    found = program.production("me", "KV reuse", "transformers")
    assert (found.code, "ran a program" in found.note) == ("", True)


def test_code_and_columns_name_no_path_of_the_operators() -> None:
    hidden = "/srv/secret/llama"
    menu = replace(MENU, models=(f"{hidden}-target", hidden, f"{hidden}-draft"))
    names = ("kv", f"kv:model={hidden}", f"speculative:auto=false,draft={hidden}-draft")
    target = ModelSpec(f"{hidden}-target")
    desk = after(Race(Request("Hi", 12), tuple(map(parse_column, names)), target), menu)
    labels = desk.on_show("me")[0]
    assert labels[:2] == ["KV reuse", "KV reuse (llama)"]
    for library in ("transformers", "openvino-genai", "vLLM"):
        for column, named in zip(labels, ("-target", "llama", "-draft"), strict=True):
            found = desk.production("me", column, library)
            assert named in found.code
            assert "secret" not in found.code + found.note
            assert "your own path" in found.note
    added = desk.with_code("me", "kv", labels[1], "transformers")
    assert added == "kv\ntransformers:model=llama"
    assert editor_state(added, menu)["columns"]
    assert "secret" not in desk.production("me", "nothing", "vLLM").note


def test_a_race_that_was_opened_has_code_as_one_that_was_run_here() -> None:
    desk = after(Race(Request("Hi", 16), COLUMNS, FAKE))
    assert desk.on_show("you")[1] in desk.on_show("you")[0]  # of the race of a new page
    events = written(0, [[n] for n in range(16)], 0.1)
    desk.open("me", as_bytes(recorded(Request("Ho", 16), COLUMNS[1:], FAKE, events)).decode())
    label = COLUMNS[1].label
    assert desk.on_show("me") == ([label], label)
    assert "Ho" in desk.production("me", label, "vLLM").code
