"""What programs ask of a page is checked and answered as a visitor's form is."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from backend.errors import DerbyError
from backend.limits import Limits
from backend.racing.hosts.inline import InlineHost
from backend.web.api import Api, Report, explained, summed_up
from backend.web.benchmark import Benchmarks
from backend.web.offer import offer_of
from backend.web.visitors import Visitors


def api(limits: Limits) -> Api:
    offer = offer_of(["fake"], limits=limits)
    visitors = Visitors(InlineHost(), limits)
    return Api(visitors, offer, Benchmarks(visitors, offer))


def raced(asked: Mapping[str, Any], limits: Limits = Limits()) -> list[Report]:  # noqa: B008 (frozen)
    async def scene() -> list[Report]:
        return [report async for report in api(limits).race("v", asked)]

    return asyncio.run(scene())


def test_a_race_without_named_columns_fits_a_page_that_allows_few() -> None:
    """`--limit columns=3` refused every call that named none."""
    *_, last = raced({"prompt": "Who?", "max_new_tokens": 8}, Limits(columns=3))
    settings = [column["setting"] for column in last["columns"]]
    assert len(settings) == 3
    assert "kv" in settings
    with pytest.raises(DerbyError, match="a race has 1 to 3"):
        raced({"prompt": "Who?", "columns": ["kv"] * 4}, Limits(columns=3))


def test_a_flaw_in_a_program_is_the_prompts() -> None:
    """It stood in every card, once for each column."""
    with pytest.raises(DerbyError, match="Line 1, column"):
        raced({"prompt": 'Name: {{gen "name" max_tokens=}}'})


def test_a_race_says_what_it_does_and_reports_every_column_at_its_end() -> None:
    asked = {"prompt": "Who?", "columns": ["kv", "lookup:k=3"], "max_new_tokens": 24, "top": 2}
    *during, last = raced(asked)
    assert all(set(report) == {"status"} for report in during)
    assert last["status"] == "ended"
    assert [column["setting"] for column in last["columns"]] == ["kv", "lookup:k=3"]
    plain, lookup = last["columns"]
    assert plain["text"] == lookup["text"] != ""
    assert lookup["verdict"] == "identical to KV reuse (24 tokens)"
    assert lookup["figures"]["tokens"] == 24
    assert [len(best) for best in lookup["top"]] == [2] * 24
    assert lookup["top"] == plain["top"]
    json.dumps(last)
    for column in last["columns"]:
        assert column["name"] in explained(last)
    assert last["headline"] in explained(last)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"prompt": " "}, "The prompt is empty"),
        ({"prompt": "a", "max_new_tokens": 9000}, "max new tokens"),
        ({"prompt": "a", "columns": ["pears"]}, "Line 1 of the line-up"),
        ({"prompt": "a", "columns": [{"a": 1}]}, "columns.0"),
        ({"prompt": "a", "model": "/etc"}, "There is no model '/etc' on this page"),
        ({"prompt": "a", "engine": "torch"}, "There is no engine 'torch' here"),
        ({"prompt": "a", "stop": ["x" * 300]}, "stop strings"),
        ({"prompt": "a", "temperature": float("nan")}, "temperature"),
    ],
)
def test_what_cannot_be_raced_is_one_sentence(asked: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(DerbyError, match=sentence):
        raced(asked)


def test_programs_stand_under_the_same_limits() -> None:
    with pytest.raises(DerbyError, match="max new tokens"):
        raced({"prompt": "a", "max_new_tokens": 9}, Limits(tokens=8))


QUESTIONS = ["One is\none", "Two", "Three", "Four"]


def test_a_benchmark_measures_the_strategies_and_names_the_best() -> None:
    async def scene() -> list[Report]:
        return [report async for report in api(Limits()).benchmark("v", QUESTIONS, 16)]

    *during, last = asyncio.run(scene())
    assert all(set(report) == {"status"} for report in during)
    columns = [setting["column"] for setting in last["settings"]]
    assert columns[0] == "KV reuse"
    assert {"Speculative", "Lookahead", "Prompt lookup"} <= set(columns)
    assert last["best"] in columns
    assert {setting["prompts"] for setting in last["settings"]} == {4}


def test_a_benchmark_measures_a_strategy_where_a_race_may_have_one_column() -> None:
    """It asked for none, and was refused."""

    async def scene() -> list[Report]:
        return [report async for report in api(Limits(columns=1)).benchmark("v", ["One"], 8)]

    assert len(asyncio.run(scene())[-1]["settings"]) == 2, "it and KV reuse"


@pytest.mark.parametrize("prompts", [0, 2])
def test_a_stopped_benchmark_names_no_best(prompts: int) -> None:
    """It said "best: KV reuse" with nothing measured."""
    asked = api(Limits())

    async def scene() -> Report:
        last = Report()
        async for report in asked.benchmark("v", QUESTIONS, 16):
            last = report
            if report["status"].startswith(f"Prompt {prompts + 1} of" if prompts else "Warming"):
                asyncio.get_running_loop().call_soon(asked._visitors.stop, "v")
        return last

    last = asyncio.run(scene())
    assert last["best"] == ""
    assert {setting["prompts"] for setting in last["settings"]} == ({prompts} if prompts else set())
    stopped = (
        f"Stopped after {prompts} of 4 prompts: Resume continues."
        if prompts
        else "Stopped before the first prompt was finished."
    )
    assert summed_up(last).startswith(f"{stopped} The best one is not known.")


def test_a_benchmark_reports_its_own_figures() -> None:
    """It reported the visitor's newest benchmark, which may be another one by then."""

    async def scene() -> Report:
        asked = api(Limits())
        ours = asked.benchmark("v", QUESTIONS, 16)
        last = Report()
        async for report in ours:
            last = report
            if report["status"].startswith("Prompt 4 of 4"):
                break
        other = asked.benchmark("v", ["Another one"], 16)
        await anext(other)  # begun, and nothing measured
        async for report in ours:
            last = report
        return last

    assert {setting["prompts"] for setting in asyncio.run(scene())["settings"]} == {4}


def test_a_benchmark_refuses_in_a_sentence() -> None:
    async def scene() -> None:
        async for _ in api(Limits(benchmark_races=3)).benchmark("v", ["a"] * 4, 16):
            pass

    with pytest.raises(DerbyError, match="4 prompts, once each, are more than the 3"):
        asyncio.run(scene())


def test_a_grammar_is_checked_with_a_text() -> None:
    async def scene() -> tuple[Report, Report]:
        asked = api(Limits())
        return (
            await asked.check_grammar("lark", 'start: "yes"', "yes"),
            await asked.check_grammar("lark", "start: ((", ""),
        )

    fine, wrong = asyncio.run(scene())
    assert fine["sound"].startswith("It works")
    assert fine["fits"].startswith("The whole text fits")
    assert not wrong["sound"].startswith("It works")
