"""The view: pure JSON, growing only, and sentences that say what the figures say."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from backend.costs.pass_costs import stated_costs
from backend.engines.fake import STEEP_PASSES
from backend.events import (
    CostsKnown,
    Event,
    Failed,
    Finished,
    Prefilled,
    Prepared,
    Preparing,
    Started,
    Step,
)
from backend.racing.hosts.inline import InlineHost
from backend.racing.race import Race
from backend.results.cost_curve import curve
from backend.results.headline import headline
from backend.results.scoreboard import Scoreboard
from backend.strategies.registry import STRATEGIES, parse_column
from backend.types import ModelSpec, Request, Sampling
from backend.web.view import idle, merged, seconds, setting_text, view

ALL = tuple(STRATEGIES.values())
STEEP = stated_costs(STEEP_PASSES)


def step(column: int, tokens: list[int], total: float, accepted: int = 0) -> Step:
    """One step that took `total` seconds, all of them in the forward pass."""
    parts = {"total": total, "draft": 0.0, "mask": 0.0, "forward": total, "rest": 0.0}
    origins = ["drafted"] * accepted + ["sampled"] * (len(tokens) - accepted)
    spans = [[origin, chr(97 + token)] for origin, token in zip(origins, tokens, strict=True)]
    gaps = [1.0] * len(tokens)
    return Step(column, tokens, origins, gaps, spans, 1, accepted, accepted, parts)


def board_of(names: str, *events: Event) -> Scoreboard:
    board = Scoreboard([STRATEGIES[name] for name in names.split()])
    for event in events:
        board.add(event)
    return board


def run(column: int, blocks: list[list[int]], cost: float) -> list[Event]:
    """A whole column: a first token after one second, then blocks at `cost` seconds each."""
    steps: list[Event] = [step(column, [0], 1.0)]
    steps += [step(column, block, cost, len(block) - 1) for block in blocks]
    return [Started(column, 5, "m"), *steps, Finished(column, "token limit", [])]


SINGLE = [[i] for i in range(1, 7)]
PAIRS = [[1, 2], [3, 4], [5, 6]]


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


def test_a_speedup_is_told_by_its_two_factors() -> None:
    """Two tokens a pass at one and a half times the cost: a third faster."""
    board = board_of("kv speculative", *run(0, SINGLE, 0.1), *run(1, PAIRS, 0.15))
    shown = view(board, race=1, goal=7)
    column = shown["columns"][1]
    assert column["speed"] == "1.33\u00d7"
    assert column["why"] == (
        "1.33\u00d7: 2.00 tokens per forward, and a 1-row forward costs 1.50 plain steps here"
    )
    assert column["same"] == "same"
    assert shown["status"] == (
        "Speculative is 1.33 times as fast as KV reuse (13.3 against 10.0 tokens a second): "
        "2.00 tokens a pass, and a pass takes 1.50 times as long. "
        "Speculative wrote the same text as KV reuse."
    )


def test_the_headline_admits_that_nothing_is_faster() -> None:
    board = board_of("kv lookup", *run(0, SINGLE, 0.1), *run(1, SINGLE, 0.11))
    assert headline(board).startswith(
        "Nothing that keeps the text is faster than KV reuse with its 10.0 tokens"
    )
    tie = board_of("kv lookup", *run(0, SINGLE, 0.1), *run(1, SINGLE, 0.099))
    assert headline(tie).startswith("Nothing that keeps the text")


def test_the_headline_names_a_changed_text() -> None:
    other = [[9], *SINGLE[1:]]
    board = board_of("kv lookup", *run(0, SINGLE, 0.1), *run(1, other, 0.1))
    assert headline(board).endswith("The text changed in Prompt lookup.")
    assert view(board, race=1, goal=7)["columns"][1]["same"] == "differs"


def test_a_grammar_may_change_the_text() -> None:
    other = [[9], *SINGLE[1:]]
    board = board_of("kv grammar", *run(0, SINGLE, 0.1), *run(1, other, 0.05))
    assert headline(board) == (
        "KV reuse writes 10.0 tokens a second. "
        "Grammar, which writes a text of its own, is 2.00 times as fast."
    )
    assert view(board, race=1, goal=7)["columns"][1]["same"] == "grammar"


def test_the_headline_prefers_what_keeps_the_text() -> None:
    other = [[9], *SINGLE[1:]]
    events = [*run(0, SINGLE, 0.1), *run(1, PAIRS, 0.15), *run(2, other, 0.05)]
    said = headline(board_of("kv speculative grammar", *events))
    assert said.startswith("Speculative is 1.33 times as fast as KV reuse")
    assert "Grammar, which writes a text of its own, is 2.00 times as fast." in said


def test_without_a_baseline_there_is_no_speedup() -> None:
    board = board_of("lookup", *run(0, SINGLE, 0.1))
    shown = view(board, race=1, goal=7)
    assert shown["columns"][0]["speed"] == "\u2013"
    assert shown["status"] == "Prompt lookup is fastest with 10.0 tokens a second."


def test_failures_and_stops_are_told() -> None:
    failed = board_of("kv lookup", Failed(0, "why"), Failed(1, "why"))
    shown = view(failed, race=1, goal=7)
    assert shown["status"] == "No column finished: each one says why."
    assert [column["message"] for column in shown["columns"]] == ["why", "why"]
    stopped = board_of("kv", *run(0, SINGLE, 0.1)[:-1], Finished(0, "stopped", []))
    assert headline(stopped).startswith("Stopped early.")
    nothing = board_of("kv", Finished(0, "stopped", []))
    assert headline(nothing) == "Stopped early. Too few tokens were written to compare speeds."


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
    hidden = "/srv/m"
    row = STRATEGIES["speculative"].with_settings({"draft": hidden})
    board = Scoreboard([row, STRATEGIES["kv"]])
    board.add(Started(1, 5, f"{hidden} on openvino"))
    board.add(Failed(0, f"cannot load {hidden}"))
    shown = view(board, race=1, goal=8, public=lambda text: text.replace(hidden, "m"))
    assert hidden not in json.dumps(shown)


@pytest.mark.parametrize("row", ALL, ids=lambda row: row.name)
def test_a_columns_setting_is_the_command_lines_word_for_it(row: Any) -> None:
    assert parse_column(setting_text(row)) == row
    if row.name == "lookahead":
        changed = row.with_settings({"seeded": False, "window": 7})
        assert parse_column(setting_text(changed)) == replace(row, drafting=changed.drafting)


def test_the_idle_page_explains_every_column() -> None:
    shown = idle(ALL)
    assert shown["phase"] == "idle"
    assert all(column["description"] for column in shown["columns"])


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.00005, "0.05 ms"), (0.0123, "12.3 ms"), (0.25, "250 ms"), (1.5, "1.50 s")],
)
def test_durations_are_in_fitting_units(value: float, text: str) -> None:
    assert seconds(value) == text


def test_a_reused_cache_does_not_hide_what_the_grammar_cost_or_still_wants() -> None:
    """Once, the words on the cache took the place of those on the grammar."""
    masked = replace(step(0, [7], 0.5), masks=[0.001, 0.003])
    board = board_of(
        "grammar",
        Started(0, 5, "m"),
        Prepared(0, 4, 0.2, 0.01),
        masked,
        Finished(0, "token limit", [], "'}'"),
    )
    column = view(board, race=1, goal=7)["columns"][0]
    assert column["status"] == "done: token limit, incomplete"
    for told in ("compiled in 10.0 ms", "2 masks, 2.0 ms on average", "expects '}'", "4 of 5"):
        assert told in column["remark"]


def wide(column: int, rows: int, tokens: int, steps: int = 4) -> list[Event]:
    """A priced column whose passes over so many rows each commit so many tokens."""
    block = list(range(tokens))
    priced = CostsKnown(column, list(STEEP.widths), list(STEEP.seconds), STEEP.width_change, 0.0)
    passes = [step(column, block, 0.1, tokens - 1) for _ in range(steps)]
    return [
        Started(column, 5, "m"),
        priced,
        step(column, [0], 1.0),
        *(replace(one, rows=rows, drafted=rows - 1) for one in passes),
        Finished(column, "token limit", []),
    ]


def test_the_curve_is_what_was_measured_and_comes_with_the_end() -> None:
    events = [*wide(0, 1, 1), *wide(1, 5, 4)]
    board = board_of("kv lookup", *events)
    found = view(board, race=1, goal=7)["costs"]
    assert [rows for rows, _, _ in found["points"]] == list(STEEP.widths)
    for rows, milliseconds, steps in found["points"]:
        assert milliseconds == pytest.approx(1e3 * STEEP(rows))
        assert steps == pytest.approx(milliseconds / found["points"][0][1])
    assert "1.0 ms" in found["note"]
    assert json.loads(json.dumps(found)) == found
    running = board_of("kv lookup", *events[:-1])
    assert view(running, race=1, goal=7)["costs"] is None


def test_without_measured_costs_there_is_no_curve(views: list[dict[str, Any]]) -> None:
    assert all(shown["costs"] is None for shown in views)
    assert idle(ALL)["costs"] is None


@pytest.mark.parametrize(("tokens", "told"), [(4, "it can pay"), (3, "it cannot pay")])
def test_a_column_lies_above_the_curve_or_below(tokens: int, told: str) -> None:
    """Five rows cost three plain steps; plain columns have no mark."""
    found = curve(board_of("kv lookup", *wide(0, 1, 1), *wide(1, 5, tokens)))
    assert found is not None
    [[title, rows, yielded, steps, sentence]] = found["marks"]
    assert (title, rows, yielded, steps) == ("Prompt lookup", 5, tokens, 3)
    assert sentence.endswith(told)


def test_a_mark_between_two_rows_lies_on_the_curve_all_the_same() -> None:
    events = [*wide(0, 13, 2, steps=1)[:-1], *wide(0, 16, 2, steps=1)[3:]]
    found = curve(board_of("lookup", *events))
    assert found is not None
    [[_, rows, _, steps, _]] = found["marks"]
    assert rows == 14.5
    assert steps == pytest.approx((1 + 14.5) / 2)


def test_wide_passes_without_guesses_are_no_marks() -> None:
    """A column without a cache computes many rows, and guesses nothing."""
    found = curve(board_of("stateless kv", *wide(0, 40, 1), *wide(1, 1, 1)))
    assert found is not None
    assert found["marks"] == []
