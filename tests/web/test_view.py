"""The view: pure JSON, growing only, and sentences that say what the figures say."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from boards import LONG, LONG_PAIRS, PAIRS, SINGLE, board_of, priced, started, step, written
from lib import LOCAL
from rich.console import Console

from backend.cli.tables import texts
from backend.events import Conditions, Failed, Finished, Judged, Prefilled, Preparing, Started
from backend.export.cost_curve import draw_costs
from backend.racing.hosts.inline import InlineHost
from backend.racing.race import Race
from backend.results.charts import cost_curve
from backend.results.figures import NONE, figures
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import default_column
from backend.types import ModelSpec, Request, Sampling
from backend.web.view import view

ALL = tuple(map(default_column, LOCAL))


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


def rounds_of(column: dict[str, Any]) -> list[list[Any]]:
    """The rounds of a column, each of them a line of JSON."""
    return [json.loads(line) for line in column["rounds"].split("\n") if line]


def test_views_are_json_and_only_grow(views: list[dict[str, Any]]) -> None:
    """Text that was shown never changes, so that only what is new has to travel."""
    assert json.loads(json.dumps(views)) == views
    for before, after in pairwise(views):
        for old, new in zip(before["columns"], after["columns"], strict=True):
            assert new["rounds"].startswith(old["rounds"])


def test_a_recording_cannot_make_a_page_draw_thousands_of_pieces() -> None:
    """16,000 of them kept a browser busy for a second."""
    pieces = [["sampled" if i % 2 else "drafted", f"{i} "] for i in range(16_000)]
    long = replace(step(0, [1, 2], 0.02), spans=pieces)
    (column,) = view(board_of("kv", started(0), long), race=1, goal=2)["columns"]
    (line,) = rounds_of(column)
    assert "".join(text for _, text in line[4]) == "".join(text for _, text in pieces)
    assert len(line[4]) == 18
    assert line[4][:17] == pieces[:17]


def test_rounds_hold_the_whole_text_and_every_token_with_its_time() -> None:
    board = board_of("kv speculative", *written(0, LONG, 0.1), *written(1, LONG_PAIRS, 0.15))
    for column, score in zip(view(board, race=1, goal=61)["columns"], board.scores, strict=True):
        clocks, tokens, rows, took, spans = zip(*rounds_of(column), strict=True)
        assert "".join(text for pairs in spans for _, text in pairs) == score.text
        assert (sum(tokens), sum(rows)) == (score.length, score.rows)
        assert list(clocks) == sorted(clocks)
        first = score.moments[0].clock  # where lanes of one prompt begin
        assert clocks[-1] == pytest.approx(1e3 * (score.seconds - first), abs=0.1)
        assert sum(took) == pytest.approx(1e3 * score.seconds, abs=0.1 * len(took))
        assert len(column["rounds"]) < 50 * score.length, "little for each token"


def test_parts_are_a_whole_and_details_come_with_the_end(views: list[dict[str, Any]]) -> None:
    for shown in views:
        for column in shown["columns"]:
            assert (column["details"] is not None) == (shown["phase"] == "ended")
    for column in views[-1]["columns"]:
        parts = column["details"]["parts"]
        # Each that is left out has less than half a percent.
        assert sum(share for _, share, _ in parts) == pytest.approx(1, abs=0.02)
    assert views[0]["phase"] == "preparing"
    assert views[-1]["phase"] == "ended"


def test_phases_follow_the_race() -> None:
    board = board_of("kv")
    shown = view(board, race=1, goal=8, ahead=2)
    assert shown["phase"] == "waiting"
    assert shown["status"] == "2 races are ahead of yours; yours starts when they end."
    board.add(Preparing("Loading /x/y..."))
    shown = view(board, race=1, goal=8, public=lambda text: text.replace("/x/y", "y"))
    assert (shown["phase"], shown["status"]) == ("preparing", "Loading y...")
    board.add(Started(0, 100, "m"))
    board.add(Prefilled(0, 64, 100, 0.5))
    shown = view(board, race=1, goal=8)
    assert shown["phase"] == "racing"
    assert shown["columns"][0]["status"] == "reading the prompt: 64 of 100"
    assert shown["columns"][0]["lane"] == "reading the prompt: 64 of 100"
    assert shown["columns"][0]["read"] == 0.64


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
    assert any("its model is m" in text for text in shown["columns"][1]["details"]["told"])
    assert hidden not in json.dumps(shown)


def test_the_page_gets_every_word_and_decides_nothing() -> None:
    board = board_of("kv speculative", *written(0, LONG, 0.1), *written(1, LONG_PAIRS, 0.15))
    shown = view(board, race=1, goal=61)
    base, column = shown["columns"]
    assert (base["pace"], base["speed"], base["pace_text"]) == ("base", "1\u00d7", "baseline")
    assert (column["pace"], column["speed"]) == ("faster", "1.33\u00d7")
    assert (base["status"], column["status"]) == ("", "\u2713 same text")
    assert column["line"] == ""
    again = view(board, race=2, goal=61, before=[(1.0, 1.27), (1.0, 1.5)])["columns"]
    told = "Earlier 1.27\u00d7, 1.50\u00d7."
    assert [each["line"] for each in again] == [base["line"], told]
    assert base["line"] == "TTFT 1.00 s; tokens/s 10.0."
    assert (base["place"], column["place"]) == ("2nd", "1st")
    said = "2.00 tokens per pass \u00f7 1.50\u00d7 the time = 1.33\u00d7 (1.31\u20131.35)."
    assert (column["sentence"], column["pace_text"]) == (said, "\u25b2 faster")
    details = column["details"]
    assert details["told"][0] == "Identical to KV reuse (61 tokens)."
    assert "61 tokens in 5.50 s; stopped by: token limit." in details["told"]
    assert details["shares"] == [["prefill", "prompt 18%"], ["forward", "passes 82%"]]
    result = shown["result"]
    assert result["headings"] == ["", "KV reuse", "Speculative"]
    assert result["lines"][:2] == [
        ["text", "baseline", "\u2713 same text"],
        ["speed-up", "1.00\u00d7", "1.33\u00d7 (1.31\u20131.35)"],
    ]


def test_no_two_figures_of_one_table_or_card_contradict_one_another() -> None:
    """A speed-up of 0.64, which is of the time in which both ran, stood beside rates of whole
    texts: 2.6 tokens a second against 5.0. And in a noisy race each figure said that it was noise.
    """
    slower = [step(0, [i], 0.1 if i < 30 else 0.9) for i in range(1, 61)]
    plain = [started(0), step(0, [0], 1.0), *slower, Finished(0, "token limit", [])]
    pairs = written(1, LONG_PAIRS, 0.15)
    shown = view(board_of("kv speculative", *plain, *pairs), race=1, goal=61)
    lines = {title: texts for title, *texts in shown["result"]["lines"]}
    assert lines.keys().isdisjoint({"TPOT", "tokens/s", "predicted"})
    factors = float(lines["tokens per pass"][1]) / float(lines["time per pass"][1][:-1])
    assert float(lines["speed-up"][1].split("\u00d7")[0]) == pytest.approx(factors, rel=0.01)
    assert "tokens/s" not in shown["columns"][1]["line"]
    told = shown["columns"][1]["details"]["told"]
    assert len({*told, shown["columns"][1]["sentence"]}) == len(told) + 1, "each sentence once"
    noisy = board_of("kv speculative", *plain, *pairs, Conditions(2, 0.9))
    shown = view(noisy, race=1, goal=61)
    assert "noisy" in shown["status"], "once, in the headline"
    assert "noisy" not in json.dumps([shown["columns"], shown["result"]])
    alone = view(board_of("lookup", *written(0, LONG, 0.1)), race=1, goal=61)
    assert {"TPOT", "tokens/s"} <= {title for title, *_ in alone["result"]["lines"]}


def test_table_and_details_hold_the_figures_that_are_known() -> None:
    """Half of them were dashes: nine figures a card, sixteen columns of the table."""
    shown = view(board_of("kv lookup", *written(0, SINGLE, 0.1), started(1)), race=1, goal=7)
    assert shown["result"] is None
    board = board_of("kv grammar", *written(0, SINGLE, 0.1), *written(1, PAIRS, 0.1))
    shown = view(board, race=1, goal=7)
    assert {len(line) for line in shown["result"]["lines"]} == {len(shown["result"]["headings"])}
    known = {title: set(texts) for title, *texts in shown["result"]["lines"]}
    assert {NONE} not in known.values()
    assert "accepted" in known, "of one of them"
    assert "mask wait" not in known, "of none"
    assert set(known) < {"text", "accepted by position", *(f.title for f in figures("page"))}


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
    details = column["details"]
    assert (column["speed"], details["parts"], details["shares"]) == ("2.00\u00d7", [], [])
    assert details["told"][0].startswith("Differs from KV reuse at token 2")
    assert {title: its for title, _, its in shown["result"]["lines"]}["rows"] == NONE
    assert [spans for *_, spans in rounds_of(column)] == [[["sampled", "a"]]] * 7


def test_the_curve_comes_with_the_end() -> None:
    events = [*priced(0, 1, 1), *priced(1, 5, 4)]
    shown = view(board_of("kv lookup", *events), race=1, goal=7)
    known = cost_curve(board_of("kv lookup", *events))
    assert known is not None
    assert shown["costs"]["svg"] == draw_costs(known)
    assert shown["costs"]["marks"] == [
        [m["name"], m["sentence"], m["pace"]] for m in known["marks"]
    ]
    assert json.loads(json.dumps(shown)) == shown
    assert view(board_of("kv lookup", *events[:-1]), race=1, goal=7)["costs"] is None


def test_a_finished_text_s_verdict_is_on_the_card_in_the_table_and_on_the_command_line() -> None:
    """Of the baseline, too, whose text is compared with nobody's."""
    broken = Judged(0, "invalid", "3 is less than 5")
    said = "not valid against its schema: 3 is less than 5"
    board = board_of("kv", started(0), step(0, [1], 1.0), broken, Finished(0, "end of text", []))
    shown = view(board, race=1, goal=1)
    [column] = shown["columns"]
    assert (column["status"], column["sentence"]) == ("not valid", f"{said[0].upper()}{said[1:]}.")
    assert shown["result"]["lines"][0][1] == "not valid"
    console = Console(width=300)
    with console.capture() as printed:
        console.print(texts(board))
    assert f"{said}." in printed.get()
