"""From a column's run to its code: what auto came to, and what visitors are handed."""

import ast
import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lib import STEEP

from backend.costs.pass_costs import UNKNOWN_COSTS
from backend.drafters.lookahead_plan import LADDER, YIELDS, choose_setting
from backend.errors import DerbyError
from backend.events import Event
from backend.export.production import LIBRARIES, won
from backend.export.snippets import Settings, Snippet, snippets
from backend.racing.hosts.inline import InlineHost
from backend.racing.race import Race
from backend.results.metrics import Score
from backend.strategies.registry import STRATEGIES, parse_column
from backend.strategies.settings import NoDrafting
from backend.types import ModelSpec, Request
from backend.web.controller import Controller
from backend.web.offer import Offer, Runtime
from backend.web.visitors import Visitors

FAKE = ModelSpec("fake", "fake")
MENU = Offer((Runtime("fake", "Fake", ("fp32",), ("CPU",)),), ("fake",))


def ran(depths: dict[tuple[int, int], int], plain: int = 0, **more: Any) -> Score:
    """A column with so many rounds of each (drafted, accepted), and so many plain passes."""
    widths = Counter({1: plain})
    for (drafted, _), rounds in depths.items():
        widths[1 + drafted] += rounds
    drafted = sum(count * rounds for (count, _), rounds in depths.items())
    steps = 1 + widths.total()
    score = Score(state="done", steps=steps, drafted=drafted, widths=widths)
    return replace(score, depths=Counter(depths), **more)


@pytest.mark.parametrize(
    ("depths", "k"),
    [({(2, 1): 1}, 2), ({(1, 0): 2, (4, 3): 1}, 2), ({(1, 0): 1, (4, 3): 2}, 3), ({(1, 1): 9}, 1)],
)
@pytest.mark.parametrize("name", ["lookup", "speculative"])
def test_k_is_what_auto_drafted_on_average(
    name: str, depths: dict[tuple[int, int], int], k: int
) -> None:
    """Passes without a draft do not count."""
    found = won(STRATEGIES[name], ran(depths, plain=50))
    assert found.strategy == STRATEGIES[name]
    assert found.settings == Settings(k=k)
    assert f"K={k} " in found.note


@given(
    st.dictionaries(
        st.tuples(st.integers(1, 40), st.integers(0, 5)), st.integers(1, 9), min_size=1
    ),
    st.integers(1, 32),
)
def test_k_stays_within_the_columns_own(depths: dict[tuple[int, int], int], k: int) -> None:
    """Two branches of a lookup are drafted at once, but none is longer than K."""
    column = parse_column(f"lookup:auto=true,k={k}")
    assert 1 <= won(column, ran(depths)).settings.k <= k


@pytest.mark.parametrize("name", ["lookup", "speculative", "lookahead"])
def test_an_auto_column_that_drafted_nothing_becomes_plain(name: str) -> None:
    found = won(STRATEGIES[name], ran({}, plain=30))
    assert found.strategy == replace(STRATEGIES[name], drafting=NoDrafting())
    assert found.settings == Settings()
    assert "Plain decoding won here" in found.note


@pytest.mark.parametrize(
    "costs", [UNKNOWN_COSTS, replace(STEEP, seconds=(1.0,) * len(STEEP.widths))]
)
def test_lookahead_has_the_shape_that_auto_chose(costs: Any) -> None:
    best, _ = choose_setting(costs, "decline", YIELDS.model)
    assert best in LADDER
    found = won(STRATEGIES["lookahead"], ran({(4, 1): 20}, plain=2, costs=costs))
    assert found.settings == Settings(window=best.window, level=best.level, guesses=best.guesses)
    assert f"W={best.window}, N={best.level}, G={best.guesses}" in found.note


def test_lookahead_that_was_given_up_becomes_plain() -> None:
    found = won(STRATEGIES["lookahead"], ran({(4, 0): 24}, plain=60))
    assert isinstance(found.strategy.drafting, NoDrafting)
    assert "given up" in found.note


@pytest.mark.parametrize("text", ["kv", "stateless", "grammar", "lookup:k=7", "lookahead:window=9"])
def test_a_column_that_was_set_stays_as_it_was_set(text: str) -> None:
    column = parse_column(text)
    found = won(column, ran({(3, 1): 5}))
    assert (found.strategy, found.settings, found.note) == (column, Settings(), "")


def test_too_short_a_run_decides_nothing_and_a_failed_one_has_no_code() -> None:
    short = won(STRATEGIES["lookup"], Score(state="done", steps=1))
    assert short.strategy == STRATEGIES["lookup"]
    assert "too little" in short.note
    with pytest.raises(DerbyError, match="Prompt lookup failed"):
        won(STRATEGIES["lookup"], Score(state="failed"))


def test_the_libraries_are_those_that_there_are_snippets_for() -> None:
    made = snippets(STRATEGIES["kv"], Request("Hi"), FAKE, Settings())
    assert tuple(snippet.library for snippet in made) == LIBRARIES


def after(race: Race, menu: Offer = MENU) -> Callable[[str, Any, Any], Snippet]:
    """What the desk hands out once the visitor "me" has run the race."""
    visitors = Visitors(Inside())

    async def watched() -> None:
        async for _ in visitors.watch("me", race):
            pass

    asyncio.run(watched())
    return Controller(visitors, menu).production


class Inside(InlineHost):
    """Runs a race of any models on the fake ones."""

    def stream(self, race: Race, stopped: Callable[[], bool]) -> Iterator[Event]:
        columns = tuple(
            column.with_settings({"draft": "fake-draft"})
            if column.name == "speculative"
            else column
            for column in race.columns
        )
        return super().stream(replace(race, target=FAKE, columns=columns), stopped)


COLUMNS = (STRATEGIES["kv"], parse_column("lookup:k=5"))


def test_a_visitor_gets_the_code_of_their_last_race() -> None:
    request = Request('it\'s "so"\n</script>', 16)
    ask = after(Race(request, COLUMNS, FAKE))
    made = snippets(COLUMNS[1], request, FAKE, Settings())
    for snippet, library in zip(made, LIBRARIES, strict=True):
        assert ask("me", "Prompt lookup", library) == snippet
    assert "prompt_lookup_num_tokens=5" in ask("me", "Prompt lookup", "transformers").code


@pytest.mark.parametrize(
    ("visitor", "title", "library", "sentence"),
    [
        ("you", "KV reuse", "vLLM", "Nothing has run yet"),
        ("me", "Lookahead", "vLLM", "no column 'Lookahead'"),
        ("me", ["KV reuse"], "vLLM", "no column"),
        ("me", None, None, "no column None"),
        ("me", "KV reuse", "../x", "no code for '../x'"),
        ("me", "KV reuse", {"a": 1}, "no code for"),
        ("me", "KV reuse", 0, "no code for 0"),
    ],
)
def test_anything_else_is_a_sentence(visitor: str, title: Any, library: Any, sentence: str) -> None:
    found = after(Race(Request("Hi", 4), COLUMNS, FAKE))(visitor, title, library)
    assert found.code == ""
    assert sentence in found.note
    assert "\n" not in found.note


def test_code_names_no_path_of_the_operators() -> None:
    hidden = "/srv/secret/llama"
    menu = replace(MENU, models=(hidden, f"{hidden}-draft"))
    column = parse_column(f"speculative:auto=false,draft={hidden}-draft")
    ask = after(Race(Request("Hi", 12), (column,), ModelSpec(hidden)), menu)
    for library in LIBRARIES:
        found = ask("me", "Speculative", library)
        assert "secret" not in found.code + found.note
        assert "llama-draft" in found.code
        assert "your own path" in found.note


def test_every_python_snippet_of_a_default_race_is_python() -> None:
    race = Race(Request("Hi", 12), tuple(STRATEGIES.values()), FAKE)
    ask = after(race)
    for column in race.columns:
        for library in LIBRARIES:
            found = ask("me", column.title, library)
            assert found.code or found.note
            if found.language == "python":
                ast.parse(found.code)
            assert not re.search(r"[\x00-\x09\x0b-\x1f]", found.code)
