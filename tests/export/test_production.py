"""From a column's run to its code: the settings in force, and what visitors are handed."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from boards import board_of, written
from hypothesis import given
from hypothesis import strategies as st

from backend.errors import DerbyError
from backend.events import Decided, Event
from backend.export.production import LIBRARIES, Snippet, fastest_code, snippet
from backend.racing.commands import Command
from backend.racing.hosts.inline import InlineHost
from backend.racing.race import Race
from backend.records.file import as_bytes
from backend.records.record import recorded
from backend.results.metrics import Score, State
from backend.strategies.column import RACE_MODEL, default_column, parse_column
from backend.types import ModelSpec, Request
from backend.web.controller import Controller
from backend.web.offer import Offer, Runtime
from backend.web.visitors import Visitors

FAKE = ModelSpec("fake", "fake")
MENU = Offer((Runtime("fake", "Fake", ("fp32",), ("CPU",)),), ("fake",))


def ran(*decisions: dict[str, Any], why: str = "", steps: int = 30, state: State = "done") -> Score:
    """A column of so many steps whose drafter decided these settings, one after another."""
    score = Score(state=state, steps=steps)
    for settings in decisions:
        score.add(Decided(0, settings, 1.5, why, []))
    return score


def code_of(column: str, score: Score, library: str = "transformers") -> Snippet:
    return snippet(parse_column(column), score, Request("Hi"), ModelSpec(), library)


@given(st.integers(1, 16), st.integers(1, 16), st.sampled_from(["lookup", "speculative"]))
def test_k_is_what_the_run_decided_last(first: int, last: int, name: str) -> None:
    """As if it had been set by hand."""
    fixed = f"{name}:k={last}"
    for library in LIBRARIES:
        found = code_of(name, ran({"k": first}, {"k": last}), library)
        assert found == code_of(fixed, ran(), library)


def test_of_a_long_reason_there_is_what_was_decided() -> None:
    why = (
        "auto guessed 4 tokens ahead on average; accepted guesses: trained draft 63 of 207; it paid"
    )
    note = code_of("lookup", ran({"k": 4}, why=why)).note
    assert note == "Auto guessed 4 tokens ahead on average."


def test_a_column_that_was_stopped_does_not_say_what_pays() -> None:
    """Its code had the most tokens that it might have drafted, as "the settings in force"."""
    assert "did not finish" in code_of("lookup", ran(state="stopped")).note
    for column, score in (
        ("lookup", ran({"k": 3}, state="stopped")),
        ("lookup", ran()),
        ("lookup:k=3", ran(state="stopped")),
    ):
        assert "did not finish" not in code_of(column, score).note


@pytest.mark.parametrize("column", ["kv", "stateless", "lookup:k=7", "lookup:auto=false"])
def test_a_column_that_was_set_stays_as_it_was_set(column: str) -> None:
    found = code_of(column, ran())
    assert found.code
    assert found.note == ""
    assert found == code_of(column, ran(steps=1)) == code_of(column, ran(steps=0))


@pytest.mark.parametrize("column", ["lookup", "speculative", "lookup:auto=true,k=3"])
def test_too_short_a_run_decides_nothing_and_says_so(column: str) -> None:
    for library in LIBRARIES:
        short, long = (code_of(column, ran(steps=steps), library) for steps in (1, 2))
        assert short.code == long.code
        assert "too little to choose settings" in short.note
        assert "too little" not in long.note
        assert "too little" not in code_of(column, ran({"k": 2}, why="So", steps=1), library).note


def test_a_column_that_failed_has_no_code() -> None:
    with pytest.raises(DerbyError, match=r"Prompt lookup \(k=3\) failed in the last race"):
        code_of("lookup:k=3", ran(state="failed"))
    assert code_of("lookup:k=3", ran(state="stopped")).code


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


def test_a_visitor_gets_the_code_of_their_last_race() -> None:
    request = Request('it\'s "so"\n</script>', 16)
    desk = after(Race(request, COLUMNS, FAKE))
    label = COLUMNS[1].label
    assert desk.on_show("me")[0] == ["KV reuse", label]
    for library in LIBRARIES:
        made = snippet(COLUMNS[1], ran(), request, FAKE, library)
        assert desk.production("me", label, library) == made
        assert desk.production("me", "Prompt lookup", library) == made
    assert "prompt_lookup_num_tokens=5" in desk.production("me", label, "transformers").code


def test_the_library_on_show_gives_way_to_one_that_can_do_what_the_column_did() -> None:
    """A grammar was the fastest, transformers has none, and there was no code."""
    columns = (default_column("kv"), parse_column("grammar:grammar=person"))
    desk = after(Race(Request("Hi", 16), columns, FAKE))
    label = columns[1].label
    assert not desk.production("me", label, "transformers").code
    assert desk.production("me", label, desk.library("me", label, "transformers")).code
    assert desk.library("me", "KV reuse", "vLLM") == "vLLM"
    assert desk.library("you", label, "vLLM") == "vLLM"
    assert desk.on_show("me") == (["KV reuse", label], "KV reuse")


def test_a_program_has_no_code() -> None:
    """Its tags were the prompt, letter by letter, and nothing said so."""
    desk = after(Race(Request('Name: {{gen "name"}}', 16), COLUMNS, FAKE))
    for library in LIBRARIES:
        made = desk.production("me", COLUMNS[0].label, library)
        assert made.code == ""
        assert made.note == (
            "The last race ran a program, whose slots are Decode Derby's own: race a plain prompt "
            "to get code."
        )


def test_of_columns_with_one_title_each_has_its_own_code() -> None:
    columns = tuple(parse_column(text) for text in ("lookup:k=5", "lookup:k=6", "lookup@fp32:k=5"))
    desk = after(Race(Request("Hi", 12), columns, FAKE))
    assert len(set(desk.on_show("me")[0])) == len(columns)
    for label, k in zip(desk.on_show("me")[0], (5, 6, 5), strict=True):
        assert f"num_tokens={k}," in desk.production("me", label, "transformers").code
    assert "num_tokens=5," in desk.production("me", "Prompt lookup", "transformers").code


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
    for visitor, label, library, sentence in asked:
        found = desk.production(visitor, label, library)
        assert found.code == ""
        assert sentence in found.note
        assert "\n" not in found.note


def test_code_and_labels_name_no_path_of_the_operators() -> None:
    """The label of a column with a model of its own went out with it."""
    hidden = "/srv/secret/llama"
    menu = replace(MENU, models=(f"{hidden}-target", hidden, f"{hidden}-draft"))
    names = ("kv", f"kv:model={hidden}", f"speculative:auto=false,draft={hidden}-draft")
    target = ModelSpec(f"{hidden}-target")
    desk = after(Race(Request("Hi", 12), tuple(map(parse_column, names)), target), menu)
    assert desk.on_show("me")[0][:2] == ["KV reuse", "KV reuse (llama)"]
    for library in LIBRARIES:
        labels = desk.on_show("me")[0]
        for column, named in zip(labels, ("-target", "llama", "-draft"), strict=True):
            found = desk.production("me", column, library)
            assert named in found.code
            assert ("llama'" in found.code) <= (named == "llama")
            assert "secret" not in found.code + found.note
            assert "your own path" in found.note
    assert "secret" not in desk.production("me", "nothing", "vLLM").note


@pytest.mark.parametrize(
    ("columns", "costs", "chosen"),
    [
        ("kv lookup speculative grammar:grammar=person", (0.1, 0.08, 0.05, 0.06), 3),
        ("kv lookup speculative lookahead", (0.1, 0.08, 0.05, 0.04), 1),
        ("kv lookup speculative", (0.1, 0.12, 0.05), 0),
        ("kv lookup", (0.1, 0.2), 0),
    ],
)
def test_production_begins_at_the_fastest_column_that_a_library_runs_whole(
    columns: str, costs: Sequence[float], chosen: int
) -> None:
    """The built-in model's trained draft, and lookahead, run in no library."""
    events = [e for i, cost in enumerate(costs) for e in written(i, [[n] for n in range(16)], cost)]
    assert fastest_code(board_of(columns, *events), ModelSpec()) == chosen


def test_a_race_that_was_opened_has_code_as_one_that_was_run_here() -> None:
    """ "Use in production" of an opened race said that nothing had run yet."""
    desk = after(Race(Request("Hi", 16), COLUMNS, FAKE))
    assert desk.on_show("you")[1] == "Grammar (grammar=contact)"  # of the race of a new page
    events = written(0, [[n] for n in range(16)], 0.1)
    desk.open("me", as_bytes(recorded(Request("Ho", 16), COLUMNS[1:], FAKE, events)).decode())
    label = COLUMNS[1].label
    assert desk.on_show("me") == ([label], label)
    assert "Ho" in desk.production("me", label, "vLLM").code
