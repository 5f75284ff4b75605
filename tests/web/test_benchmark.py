"""A benchmark on the page measures what the command line's does, and can be stopped and resumed."""

import asyncio
import csv
import io
import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from lib import without_template

from backend.bench.rows import Figures
from backend.bench.runner import RAW
from backend.bench.summary import ALL, ColumnResult, Measured
from backend.limits import PRIVATE, Limits
from backend.racing.hosts.inline import InlineHost
from backend.results.figures import NONE, TIMES, factor
from backend.text import ByteTokenizer
from backend.web.api import values_of
from backend.web.benchmark import Benchmarks, _boxes, _ticks, _verdict
from backend.web.form import read_race
from backend.web.offer import Offer, offer_of
from backend.web.view import View
from backend.web.visitors import Visitors

FORM = values_of(offer_of(["fake"]), {"max_new_tokens": 24, "columns": ("lookup", "stateless")})
PROMPTS = "\n".join(
    json.dumps({"category": category, "turns": [text]})
    for category, text in (("a", "One is one"), ("a", "Two is two"), ("b", "Three is three"))
)

Scene = Callable[[Benchmarks, Visitors], Awaitable[list[View]]]


def offer(limits: Limits = PRIVATE) -> Offer:
    return offer_of(["fake"], limits=limits)


def played(scene: Scene, limits: Limits = PRIVATE) -> list[View]:
    async def whole() -> list[View]:
        visitors = Visitors(InlineHost(), limits)
        return await scene(Benchmarks(visitors, offer(limits)), visitors)

    return asyncio.run(whole())


def run_to_its_end(
    prompts: str = PROMPTS, repeats: Any = 1, limits: Limits = PRIVATE
) -> list[View]:
    async def scene(benchmarks: Benchmarks, _: Visitors) -> list[View]:
        return [view async for view in benchmarks.start("v", FORM, prompts, repeats)]

    return played(scene, limits)


def test_every_prompt_is_measured_and_summed_up_by_category() -> None:
    views = run_to_its_end()
    assert [view["phase"] for view in views] == ["warming up", *["running"] * 3, "ended"]
    assert [view["share"] for view in views] == [0, 0, 0.3333, 0.6667, 1]
    last = views[-1]
    assert [category for category, _ in last["groups"]] == ["all", "a", "b"]
    for _, lines in last["groups"]:
        assert {line[0] for line in lines} == {"KV reuse", "Prompt lookup", "Stateless"}
        assert all(len(line) == len(last["headings"]) for line in lines)
    assert {row[0] for row in last["boxes"]["rows"]} == {"Prompt lookup", "Stateless"}
    for _, marks, dots, _ in last["boxes"]["rows"]:
        assert len(dots) == 3
        assert all(0 <= place <= 1 for place in (*marks, *(place for place, _ in dots)))
        assert [label[0] for _, label in dots] == ["a", "a", "b"]
        assert marks == sorted(marks)
    assert last["failures"] == []


def test_the_fastest_stands_first_in_the_table_and_in_the_chart() -> None:
    """They stood as in the line-up."""
    last = run_to_its_end()[-1]
    speedup = last["headings"].index("speed-up")
    for _, lines in last["groups"]:
        speeds = [float(line[speedup].rstrip(TIMES)) for line in lines]
        assert speeds == sorted(speeds, reverse=True)
    _, whole = last["groups"][0]
    drawn = [row[0] for row in last["boxes"]["rows"]]
    assert drawn == [line[0] for line in whole if line[0] != "KV reuse"]


def test_no_column_of_the_table_is_empty_and_the_baseline_has_no_interval() -> None:
    """There was a column of dashes for masks, and KV reuse had an interval of 1.00 to 1.00."""
    prompts = "\n".join(("One", "Two", "Three", "Four"))
    last = run_to_its_end(prompts)[-1]
    assert "mask wait, ms" not in last["headings"]
    ((_, lines),) = last["groups"]
    for cells in zip(*lines, strict=True):
        assert set(cells) != {NONE}
    (base,) = (line for line in lines if line[0] == "KV reuse")
    for name in ("interval", "spread"):
        assert base[last["headings"].index(name)] == NONE


@pytest.mark.parametrize("prompts", [1, 3, 4])
def test_only_columns_that_are_there_are_explained(prompts: int) -> None:
    """An interval was explained above a table without any, and the heads "equal" and "prompts"
    stood over two numbers that said one thing. A single prompt has no range.
    """
    last = run_to_its_end("\n".join(f"Number {n}" for n in range(prompts)))[-1]
    shown, told = last["headings"], last["explained"]
    assert ("interval" in shown) == ("Interval: " in told) == (prompts >= 4)
    assert ("spread" in shown) == ("Spread: " in told) == (prompts > 1)
    assert "Same text: " in told
    ((_, lines),) = last["groups"]
    same = shown.index("same text")
    assert {line[same] for line in lines} == {f"{prompts} of {prompts}"}
    assert not {"equal", "prompts"} & set(shown)


def test_a_model_without_a_chat_template_is_measured_on_raw_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every column failed, and the page asked to switch the template off."""
    monkeypatch.setattr(ByteTokenizer, "encode", without_template)
    last = run_to_its_end()[-1]
    assert last["failures"] == []
    assert last["status"].endswith(RAW)


def test_every_turn_of_a_question_is_measured() -> None:
    """SPEED-Bench's, whose turns are messages; a turn counts as a prompt that may be run here."""
    said = [{"role": "user", "content": text} for text in ("Who?", "When?")]
    text = json.dumps({"question_id": "4f", "category": "qa", "messages": said})
    views = run_to_its_end(text)
    assert [view["status"].partition('"')[2] for view in views[1:-1]] == ['Who?"', 'When?"']
    assert len(views[-1]["files"]["csv"].splitlines()) == 1 + 2 * 3
    assert views[-1]["status"].startswith("1 of 1 prompts")
    (refused,) = run_to_its_end(text, limits=replace(PRIVATE, benchmark_races=1))
    assert "2 prompts, once each, are more than the 1 run" in refused["alert"]


def test_what_is_saved_is_the_command_lines_json_and_every_measurement() -> None:
    last = run_to_its_end(repeats=2)[-1]
    files = last["files"]
    results = json.loads(files["json"])
    assert last["status"].startswith("6 of 6 runs measured"), "of the three prompts below"
    assert set(results[0]) == set(ColumnResult.__dataclass_fields__)
    assert results[0]["prompts"] == results[0]["equal"] == 3
    lines = list(csv.DictReader(io.StringIO(files["csv"])))
    assert len(lines) == 3 * 3 * 2
    assert {line["equal"] for line in lines} == {"True"}


def stopped_midway(repeats: int = 1) -> list[View]:
    """The views of a benchmark that its visitor stops after two of three prompts."""

    async def scene(benchmarks: Benchmarks, visitors: Visitors) -> list[View]:
        views: list[View] = []
        async for view in benchmarks.start("v", FORM, PROMPTS, repeats):
            views.append(view)
            if view["share"] > 0.5:
                asyncio.get_running_loop().call_soon(visitors.stop, "v")
        return views

    return played(scene)


def test_a_race_between_two_prompts_ends_the_benchmark_and_not_the_race() -> None:
    """The next prompt took the place of a race that its visitor had just begun."""

    async def scene(benchmarks: Benchmarks, visitors: Visitors) -> list[View]:
        views: list[View] = []
        async for view in benchmarks.start("v", FORM, PROMPTS, 1):
            views.append(view)
            if view["share"] > 0 and view["phase"] == "running":
                visitors.begin("v", read_race({**FORM, "prompt": "Mine"}, offer()))
        frames = [frame async for frame in visitors.follow("v")]
        assert frames[-1].over
        assert {score.state for score in frames[-1].board.scores} == {"done"}
        return views

    assert played(scene)[-1]["status"] == "Stopped after 1 of 3 prompts: Resume continues."


def test_a_stop_between_two_prompts_is_heard() -> None:
    """It came to nothing: only a race that ran could be stopped, and the benchmark went on."""

    async def scene(benchmarks: Benchmarks, visitors: Visitors) -> list[View]:
        views: list[View] = []
        async for view in benchmarks.start("v", FORM, PROMPTS, 1):
            views.append(view)
            if view["share"] > 0:
                visitors.stop("v")
        return views

    assert played(scene)[-1]["status"] == "Stopped after 1 of 3 prompts: Resume continues."


def gone_on(before: Any, prompts: str = PROMPTS, form: Any = FORM) -> list[View]:
    """The views of another visitor's benchmark, in another process, that goes on from `before`."""

    async def scene(benchmarks: Benchmarks, _: Visitors) -> list[View]:
        return [view async for view in benchmarks.start("w", form, prompts, 1, before)]

    return played(scene)


def test_a_stopped_benchmark_goes_on_with_the_prompt_it_was_stopped_at() -> None:
    """And what was measured before counts: after a reload the visitor is a new one."""
    before = stopped_midway()
    assert before[-1]["phase"] == "stopped"
    assert before[-1]["files"] is not None
    assert before[-1]["left"] == before[-1]["status"]
    assert before[-2]["left"] == "Stopped after 2 of 3 prompts: Resume continues."
    text = before[-1]["kept"]
    assert "fake" not in text
    assert "KV reuse" not in text
    views = gone_on(text)
    assert [view["share"] for view in views] == [0.6667, 0.6667, 1]
    assert views[-1]["kept"].startswith(text)
    lines = list(csv.reader(io.StringIO(views[-1]["files"]["csv"])))
    measured = list(csv.reader(io.StringIO(before[-1]["files"]["csv"])))
    assert lines[: len(measured)] == measured
    assert len(lines) == 1 + 3 * 3
    same = views[-1]["headings"].index("same text")
    assert views[-1]["groups"][0][1][0][same] == "3 of 3"
    over = gone_on(views[-1]["kept"])
    assert over == [{"alert": "This benchmark has ended: start a new one."}]


def test_nothing_goes_on_from_another_benchmark() -> None:
    text = stopped_midway()[-1]["kept"]
    other = PROMPTS.replace("Two", "Ten")
    for prompts, form in ((other, FORM), (PROMPTS, {**FORM, "lineup": "lookup"})):
        (view,) = gone_on(text, prompts, form)
        assert "belong to another line-up, prompt set, machine or version" in view["alert"]


@pytest.mark.parametrize("before", [None, "[", "null", "[" * 100_000, "{}", '"a"', "x" * 5_000_000])
def test_what_is_no_benchmark_is_one_sentence(before: Any) -> None:
    assert gone_on(before) == [{"alert": "There is no benchmark to continue: start one."}]


@pytest.mark.parametrize("speedups", [[1.0], [1.0, 1.0], [1.0, 2.0], [0.5]])
def test_columns_as_fast_as_the_baseline_have_their_marks(speedups: list[float]) -> None:
    """A column that took exactly the baseline's time ended the whole benchmark, by a division by
    the length of its axis.
    """
    found = [
        Measured(column, "any", prompt, Figures.model_construct(speedup=speedup, equal=True))
        for prompt, speedup in enumerate(speedups)
        for column in ("KV reuse", "Prompt lookup")
    ]
    drawn = _boxes(found, ["Prompt lookup"], str)
    assert drawn is not None
    ((_, marks, dots, words),) = drawn["rows"]
    assert all(0 < place < 1 for place in (drawn["one"], *marks, *(place for place, _ in dots)))
    # "1.17x, 1.17-1.17" stood beside a line through a single dot.
    assert (len(marks), "," in words) == ((5, True) if len(speedups) > 1 else (0, False))


def test_the_slowest_and_the_fastest_prompt_are_named() -> None:
    """A dot did not say which prompt it stands for."""
    told = (("quote", 2.0), ("story", 0.9), ("code", 1.2))
    found = [
        Measured("Prompt lookup", kind, at, Figures.model_construct(speedup=speedup, equal=True))
        for at, (kind, speedup) in enumerate(told)
    ]
    drawn = _boxes(found, ["Prompt lookup"], str)
    assert drawn is not None
    ((_, _, dots, words),) = drawn["rows"]
    assert [label for _, label in dots] == [f"{kind} {factor(speedup)}" for kind, speedup in told]
    assert words == "1.20\u00d7, 0.90 (story) to 2.00 (quote)"


def test_a_column_that_wrote_another_text_is_drawn_as_such() -> None:
    """A grammar's 1.22x stood beside the others, and none of its texts was theirs."""
    found = [
        Measured(column, "any", 0, Figures.model_construct(speedup=1.2, equal=equal))
        for column, equal in (("KV reuse", True), ("Grammar", False), ("Lookahead", True))
    ]
    drawn = _boxes(found, ["Grammar", "Lookahead"], str)
    assert drawn is not None
    assert [row[0] for row in drawn["rows"]] == ["Grammar, different text", "Lookahead"]


@pytest.mark.parametrize(("low", "high"), [(0.97, 1.06), (0.2, 1.4), (0.9, 40.0), (1.0, 200.0)])
def test_an_axis_has_few_round_values_at_even_distances(low: float, high: float) -> None:
    ticks = _ticks(low, high)
    assert 1 <= len(ticks) <= 6
    assert all(low <= tick <= high for tick in ticks)
    assert len({round(b - a, 2) for a, b in itertools.pairwise(ticks)}) <= 1
    assert all(20 * tick == pytest.approx(round(20 * tick)) for tick in ticks)


@pytest.mark.parametrize(
    ("intervals", "said"),
    [
        ([], ""),
        ([None], "These are too few prompts to name the fastest strategy: four are needed."),
        (
            [(0.9, 1.4)],
            (
                "No strategy was measurably faster than KV reuse. "
                "The median of A is 1.20\u00d7 (95% interval 0.90\u20131.40). "
                "More prompts narrow it."
            ),
        ),
        ([(0.5, 0.9)], "No strategy was measurably faster than KV reuse."),
        (
            [(1.1, 1.4), (0.9, 1.9)],
            (
                "A is the fastest: its median speed-up over KV reuse is 1.20\u00d7 "
                "(95% interval 1.10\u20131.40)."
            ),
        ),
    ],
)
def test_a_benchmark_ends_with_what_it_shows(
    intervals: list[tuple[float, float] | None], said: str
) -> None:
    """A wide interval makes no winner, however high its middle is."""
    blank = dict.fromkeys(ColumnResult.__dataclass_fields__)
    rest = {**blank, "category": ALL, "machine": ALL}
    base = {
        "column": "KV reuse",
        "speedup": 1.0,
        "interval": (1.0, 1.0) if any(intervals) else None,
    }
    known = [ColumnResult(**rest | base)]
    for name, speedup, interval in zip("AB", (1.2, 1.6), intervals, strict=False):
        found = {"column": name, "speedup": speedup, "interval": interval}
        known.append(ColumnResult(**rest | found))
    assert _verdict(known) == said


def test_a_cell_of_the_file_is_no_formula() -> None:
    """A category is whatever a prompt set says."""
    prompts = json.dumps({"category": "=1+1", "turns": ["One is one"]})
    (_, *lines) = csv.reader(io.StringIO(run_to_its_end(prompts)[-1]["files"]["csv"]))
    assert {line[1] for line in lines} == {"'=1+1"}


def test_a_column_that_fails_is_named_and_the_others_are_measured() -> None:
    async def scene(benchmarks: Benchmarks, _: Visitors) -> list[View]:
        form = {**FORM, "lineup": "lookup\ngrammar:grammar=own", "grammar.text": "start: (("}
        form["grammar.kind"] = "lark"
        return [view async for view in benchmarks.start("v", form, "One is one", 1)]

    last = played(scene)[-1]
    assert {line[0] for line in last["groups"][0][1]} == {"KV reuse", "Prompt lookup"}
    assert len(last["failures"]) == 1
    assert "prompt 1" in last["failures"][0]


@pytest.mark.parametrize(
    ("prompts", "repeats", "sentence"),
    [
        (PROMPTS, 5, "15 runs"),
        ("x" * 200_001, 1, "200,000 characters"),
        ('{"category": "a"}', 1, "line 1 is not a question"),
        (PROMPTS, 0, "it must be 1 or more"),
        (PROMPTS, "2", "it must be a whole number"),
        (None, 1, "must be text"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(prompts: Any, repeats: Any, sentence: str) -> None:
    (view,) = run_to_its_end(prompts, repeats, Limits(benchmark_races=10))
    assert list(view) == ["alert"]
    assert sentence.replace("15 runs", "10 runs") in view["alert"]


def test_an_operator_may_offer_none() -> None:
    (view,) = run_to_its_end(limits=Limits(benchmark_races=0))
    assert "runs no benchmarks" in view["alert"]
