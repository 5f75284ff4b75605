"""The view: pure JSON, growing only, and sentences that say what the figures say."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from boards import LONG, LONG_PAIRS, SINGLE, board_of, priced, started, step, written
from rich.console import Console

from backend.cli.tables import texts
from backend.events import Failed, Finished, Judged, Prefilled, Preparing, Resumed, Started
from backend.racing.hosts.inline import InlineHost
from backend.racing.race import Race
from backend.results.charts import cost_curve
from backend.results.figures import NONE, figures, glossary
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import default_column, parse_column
from backend.strategies.registry import strategies
from backend.types import ModelSpec, Request, Sampling
from backend.web.view import idle, merged, view

ALL = tuple(map(default_column, strategies()))


@pytest.fixture(scope="module")
def views() -> list[dict[str, Any]]:
    """Every view of a race of all columns, one for each event."""
    race = Race(Request("Hi", 48, Sampling(0.7)), ALL, ModelSpec("fake", "fake"))
    board = Scoreboard(race.columns)
    seen = [view(board, race=1, goal=48)]
    for event in InlineHost().stream(race, lambda: False):
        board.add(event)
        seen.append(view(board, race=1, goal=48))
    return seen


def test_views_are_json_and_only_grow(views: list[dict[str, Any]]) -> None:
    """Text that was shown never changes, so that only what is new has to travel."""
    assert json.loads(json.dumps(views)) == views
    for before, after in pairwise(views):
        for old, new in zip(before["columns"], after["columns"], strict=True):
            texts = ["".join(text for _, text in column["spans"]) for column in (old, new)]
            assert texts[1].startswith(texts[0])
            assert new["spans"][: max(0, len(old["spans"]) - 1)] == old["spans"][:-1]
            assert old["progress"] <= new["progress"] or after["phase"] == "ended"


def test_bars_are_fractions_and_parts_a_whole(views: list[dict[str, Any]]) -> None:
    for shown in views:
        for column in shown["columns"]:
            assert 0 <= column["progress"] <= 1
            assert 0 <= column["prefill"] <= 1
            if column["parts"]:
                assert sum(share for _, share, _ in column["parts"]) == pytest.approx(1, abs=0.01)
    assert views[0]["phase"] == "preparing"
    assert views[-1]["phase"] == "ended"
    assert max(column["progress"] for column in views[-1]["columns"]) == 1


def test_neighbours_of_one_origin_are_one_span() -> None:
    spans = [["sampled", "a"], ["sampled", "b"], ["drafted", "c"], ["sampled", "d"]]
    assert merged(spans) == [["sampled", "ab"], ["drafted", "c"], ["sampled", "d"]]
    assert spans[0] == ["sampled", "a"]


def test_phases_follow_the_race() -> None:
    board = board_of("kv")
    shown = view(board, race=1, goal=8, ahead=2)
    assert (shown["phase"], shown["status"]) == ("waiting", "2 races ahead of yours.")
    assert view(board, race=1, goal=8, ahead=1)["status"] == "1 race ahead of yours."
    board.add(Preparing("Loading /x/y..."))
    shown = view(board, race=1, goal=8, public=lambda text: text.replace("/x/y", "y"))
    assert (shown["phase"], shown["status"]) == ("preparing", "Loading y...")
    board.add(Started(0, 100, "m"))
    board.add(Prefilled(0, 64, 100, 0.5))
    shown = view(board, race=1, goal=8)
    assert shown["phase"] == "racing"
    assert shown["columns"][0]["status"] == "reading the prompt: 64 of 100 tokens"
    assert shown["columns"][0]["prefill"] == 0.64


def test_public_hides_what_it_should_everywhere() -> None:
    """A column's name and its verdict hold settings and models, too."""
    hidden = "/srv/m"
    drafting = default_column("speculative").with_settings({"draft": hidden})
    board = Scoreboard([default_column("kv"), drafting, default_column("speculative"), drafting])
    for event in (
        *written(0, SINGLE, 0.1),
        *written(1, [[9]], 0.1, {"name": hidden}),
        Failed(2, f"cannot load {hidden}"),
        Started(3, 5, f"{hidden} on openvino"),
        Finished(3, "stopped", []),
    ):
        shown = view(board, race=1, goal=8, public=lambda text: text.replace(hidden, "m"))
        assert hidden not in json.dumps(shown)
        board.add(event)
    shown = view(board, race=1, goal=8, public=lambda text: text.replace(hidden, "m"))
    assert "its model is m" in shown["columns"][1]["verdict"]
    assert hidden not in json.dumps(shown)


@pytest.mark.parametrize("row", ALL, ids=lambda row: row.name)
def test_a_columns_setting_is_the_command_lines_word_for_it(row: Any) -> None:
    assert parse_column(str(row)) == row
    if row.name == "lookahead":
        changed = row.with_settings({"seeded": False, "window": 7})
        assert parse_column(str(changed)) == changed


def test_the_idle_page_explains_every_column() -> None:
    shown = idle(ALL)
    assert shown["phase"] == "idle"
    assert all(column["description"] for column in shown["columns"])
    assert {title for title, _, _ in glossary()} < {title for title, _ in shown["glossary"]}
    assert json.loads(json.dumps(shown)) == shown


def test_the_page_gets_every_word_and_decides_nothing() -> None:
    board = board_of("kv speculative", *written(0, LONG, 0.1), *written(1, LONG_PAIRS, 0.15))
    shown = view(board, race=1, goal=61)
    base, column = shown["columns"]
    assert (base["pace"], base["speed"], base["pace_text"]) == ("base", "1\u00d7", "the baseline")
    assert (column["pace"], column["speed"]) == ("faster", "1.33\u00d7")
    assert (base["interval"], column["interval"]) == ("", "(1.31\u20131.35)")
    assert column["verdict"] == "\u2713 identical to KV reuse (61 tokens)"
    assert column["progress_text"] == "61 tokens in 5.50 s"
    assert column["shares"] == [["prefill", "prefill 0%"], ["forward", "forward 100%"]][1:]
    result = shown["result"]
    assert result["caption"] == "Speed while both were decoding; the line is KV reuse"
    assert result["bars"] == [
        ["KV reuse", 0.75, "base", "10.0, 1.00\u00d7"],
        ["Speculative", 1.0, "faster", "13.3, 1.33\u00d7 (1.31\u20131.35)"],
    ]
    assert result["line"] == pytest.approx(0.75)
    assert [line[-1] for line in result["lines"]] == [
        "the baseline",
        "identical to KV reuse (61 tokens)",
    ]


def test_the_setup_names_each_target_once() -> None:
    board = board_of("kv lookup speculative", started(0), started(1))
    board.add(Started(2, 0, "remote"))
    assert view(board, race=1, goal=7)["setup"] == "m, 5 prompt tokens; remote"


def test_cards_and_table_hold_the_figures_of_the_one_table() -> None:
    shown = view(board_of("kv", *written(0, SINGLE, 0.1)), race=1, goal=7)
    assert [title for title, _ in shown["figures"]] == [f.title for f in figures("card")]
    assert len(shown["columns"][0]["figures"]) == len(shown["figures"])
    titles = [f.title for f in figures("table")]
    assert [title for title, _ in shown["result"]["headings"]] == ["Column", *titles, "text"]
    assert {len(line) for line in shown["result"]["lines"]} == {len(titles) + 2}


def test_a_speed_that_is_not_known_is_a_dash() -> None:
    shown = view(board_of("lookup", *written(0, SINGLE, 0.1)), race=1, goal=7)
    assert shown["columns"][0]["speed"] == NONE
    assert shown["result"]["caption"] == "Tokens a second"
    assert shown["result"]["bars"] == [["Prompt lookup", 1.0, "", "10.0"]]


def test_a_failed_column_is_told_with_its_sentence() -> None:
    shown = view(board_of("kv lookup", Failed(0, "why"), Failed(1, "why")), race=1, goal=7)
    assert [column["message"] for column in shown["columns"]] == ["why", "why"]
    assert [line[-1] for line in shown["result"]["lines"]] == ["failed", "failed"]


def test_a_lane_of_text_alone_has_a_card() -> None:
    """Neither ids nor gaps, rows or parts: dashes, and no share of anything."""
    bare = replace(
        step(1, [], 0.05, rows=0),
        origins=["sampled"],
        seconds={"total": 0.05},
        spans=[["sampled", "a"]],
    )
    remote = [Started(1, 0, "remote"), *[bare] * 7, Finished(1, "end of text", [])]
    shown = view(board_of("kv lookup", *written(0, SINGLE, 0.1), *remote), race=1, goal=7)
    column = shown["columns"][1]
    assert (column["speed"], column["parts"], column["shares"]) == ("2.00\u00d7", [], [])
    assert column["verdict"] == "not compared with KV reuse: its tokens are not known"
    assert (
        dict(zip([t for t, _ in shown["figures"]], column["figures"], strict=True))["rows"] == NONE
    )
    assert column["spans"] == [["sampled", "aaaaaaa"]]


def test_a_continued_column_goes_on_along_its_lane() -> None:
    events = [started(0), Resumed(0, [1, 2, 3], [], [], 0.1), step(0, [4], 0.4)]
    column = view(board_of("kv", *events), race=1, goal=8)["columns"][0]
    assert column["progress"] == 0.5
    assert column["progress_text"] == "1 new token in 500 ms, after 3 earlier"


def test_the_curve_comes_with_the_end() -> None:
    events = [*priced(0, 1, 1), *priced(1, 5, 4)]
    shown = view(board_of("kv lookup", *events), race=1, goal=7)
    assert shown["costs"] == cost_curve(board_of("kv lookup", *events))
    assert json.loads(json.dumps(shown)) == shown
    assert view(board_of("kv lookup", *events[:-1]), race=1, goal=7)["costs"] is None


def test_without_measured_costs_there_is_no_curve(views: list[dict[str, Any]]) -> None:
    assert all(shown["costs"] is None for shown in views)
    assert idle(ALL)["costs"] is None


def test_a_finished_text_s_verdict_is_on_the_card_in_the_table_and_on_the_command_line() -> None:
    """Of the baseline, too, whose text is compared with nobody's."""
    broken = Judged(0, "invalid", "/a", "3 is less than 5", forbidden=True)
    said = "not valid by its schema at /a: 3 is less than 5; the grammar engine let it through"
    board = board_of("kv", started(0), step(0, [1], 1.0), broken, Finished(0, "end of text", []))
    shown = view(board, race=1, goal=1)
    assert shown["columns"][0]["verdict"] == said
    assert shown["result"]["lines"][0][-1] == f"the baseline; {said}"
    console = Console(width=300)
    with console.capture() as printed:
        console.print(texts(board))
    assert f"{said}." in printed.get()
