"""A benchmark is a plan, rows of what was measured, and folds over them; it goes on from rows."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
from boards import board_of, started, step
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from backend.bench.plan import Plan
from backend.bench.prompts import PROMPTS, Prompt
from backend.bench.rows import (
    OtherPlanError,
    Row,
    RowFile,
    left_of,
    row_of,
    rows_in,
)
from backend.bench.runner import raced, run
from backend.bench.summary import ColumnResult, failures, measured, results
from backend.bench.tables import results_table
from backend.errors import DerbyError
from backend.events import Event, Failed, Finished
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.figures import figure
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request

LOOP = ModelSpec("fake-loop", "fake")


def plan(*columns: str, prompts: int = 3, repeats: int = 1, tokens: int = 40) -> Plan:
    return Plan(
        PROMPTS[:prompts] * repeats,
        tuple(map(parse_column, columns)),
        Request("-", tokens),
        (LOOP,),
    )


def ran(given: Plan, done: list[Row] | None = None) -> list[Row]:
    here = partial(raced, models=LoadedModels())
    return [*(done or []), *run(given, done or [], here, lambda _: None)]


def printed(found: list[ColumnResult]) -> str:
    console = Console(width=200, record=True, file=StringIO())
    console.print(results_table("", found))
    return console.export_text()


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 3), st.integers(1, 2))
def test_every_column_is_first_equally_often(
    columns: int, prompts: int, repeats: int, models: int
) -> None:
    named = [f"lookup:k={k}" for k in range(1, columns)]
    targets = (LOOP, ModelSpec("fake", "fake"))[:models]
    given = replace(plan(*named, prompts=prompts, repeats=repeats), targets=targets)
    assert [job.number for job in given.jobs] == list(range(prompts * repeats * models))
    assert given.columns[0] == parse_column("kv")
    first = Counter(job.race.first for job in given.jobs)
    assert max(first.values()) - min(first[i] for i in range(len(given.columns))) <= 1
    seen = Counter((job.race.target, job.race.request.prompt, job.prompt) for job in given.jobs)
    assert set(seen.values()) == {repeats}, "the same text has the same number"
    assert len(seen) == prompts * models


def test_a_plan_is_another_one_if_anything_of_it_is() -> None:
    one = plan("lookup")
    others = [
        plan("lookup:k=3"),
        plan("lookup", prompts=2),
        plan("lookup", repeats=2),
        plan("lookup", tokens=39),
        replace(one, targets=(ModelSpec("fake", "fake"),)),
        replace(one, anywhere=True),
    ]
    assert len({one.identity, *(other.identity for other in others)}) == 1 + len(others)
    assert plan("lookup").identity == one.identity


def test_what_is_measured_already_is_not_measured_again(tmp_path: Path) -> None:
    """From a file whose writer was killed within a row, too."""
    given, file = plan("lookup"), tmp_path / "rows.jsonl"
    kept, races = RowFile(file, given), list[Race]()

    def race(each: Race) -> Scoreboard:
        races.append(each)
        return raced(each, LoadedModels())

    for row in run(given, kept.rows, race, lambda _: None):
        kept.add(row)
    assert [each.request.prompt for each in races] == [
        prompt.text for prompt in (PROMPTS[0], *PROMPTS[:3])
    ], "the first one once beforehand"
    text = file.read_text(encoding="utf-8")
    file.write_text(text[:-40], encoding="utf-8")
    races.clear()
    kept = RowFile(file, given)
    for row in run(given, kept.rows, race, lambda _: None):
        kept.add(row)
    assert [each.request.prompt for each in races] == [PROMPTS[2].text] * 2
    assert len(RowFile(file, given).rows) == len(kept.rows) == 3
    assert list(run(given, kept.rows, race, lambda _: None)) == []
    with pytest.raises(DerbyError, match="belong to another benchmark, machine or version"):
        RowFile(file, plan("lookup:k=3"))
    with pytest.raises(DerbyError, match="There is no folder"):
        RowFile(tmp_path / "none" / "rows.jsonl", given)
    file.write_text("[\n", encoding="utf-8")
    with pytest.raises(DerbyError, match="cannot be read: line 1 is not a benchmark result"):
        RowFile(file, given)


def test_a_prompt_of_which_a_column_failed_is_measured_again(tmp_path: Path) -> None:
    """A server that had died and was started again was never asked again, and its failures stayed
    in the table.
    """
    given, file = plan("lookup"), tmp_path / "rows.jsonl"
    kept = RowFile(file, given)
    for row in ran(given):
        kept.add(row)
    failed = replace_columns(kept.rows[1], "the server does not answer.")
    kept.add(failed)
    assert [job.number for job in left_of(given, kept.rows)] == [failed.job]
    for row in run(given, kept.rows, partial(raced, models=LoadedModels()), lambda _: None):
        kept.add(row)
    for each in (kept, RowFile(file, given)):
        assert left_of(given, each.rows) == []
        assert len(each.rows) == 3
        assert failures(given, each.rows) == []


def replace_columns(row: Row, last: str) -> Row:
    return row.model_copy(update={"turns": ((*row.turns[0][:-1], last),)})


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return ran(plan("lookup"))


def test_rows_come_back_as_they_were(rows: list[Row]) -> None:
    text = "".join(row.line for row in rows)
    assert rows_in(text, plan("lookup")) == rows
    for line in text.splitlines():
        assert set(json.loads(line)) == {"of", "job", "machine", "raw", "turns"}
    with pytest.raises(OtherPlanError):
        rows_in(text, plan("stateless"))


WRONG = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just([[0]])
).filter(lambda value: value not in (0, 1, 2, "", True, False))


@given(data=st.data())
def test_a_row_that_was_changed_is_refused_or_still_a_row(
    data: st.DataObject, rows: list[Row]
) -> None:
    """Rows come back from browsers: whatever is in them, nothing is said of what is not there."""
    given, row = plan("lookup"), json.loads(rows[1].line)
    place = data.draw(st.sampled_from([row, row["turns"][0][1]]))
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(WRONG)
    try:
        found = rows_in(json.dumps(row), given)
    except DerbyError:
        return
    known = results(measured(given, found))
    json.dumps([failures(given, found), printed(known) if known else ""])


def test_a_failed_column_is_named_and_the_others_are_measured() -> None:
    given = plan("lookup", "stateless", prompts=1)
    board = raced(given.jobs[0].race, LoadedModels())
    board.add(Failed(1, "The device is gone."))
    found = [row_of(given, given.jobs[0], [board])]
    assert [each.column for each in measured(given, found)] == ["KV reuse", "Stateless"]
    assert failures(given, found) == ["Prompt lookup, prompt 1: The device is gone."]
    board.add(Failed(0, "Gone too."))
    found = [row_of(given, given.jobs[0], [board])]
    assert measured(given, found) == [], "there is nothing to compare with"
    assert len(failures(given, found)) == 2


def test_every_column_is_compared_with_kv_reuse_in_all_and_by_category() -> None:
    given = plan("stateless", "lookup", "kv")
    found = results(measured(given, ran(given)))
    columns = ["KV reuse", "Stateless", "Prompt lookup"]
    categories = ["all", *(prompt.category for prompt in given.prompts)]
    assert [(r.category, r.column) for r in found] == [
        (category, column) for category in categories for column in columns
    ]
    for result in found:
        assert result.prompts == result.equal == (3 if result.category == "all" else 1)
        assert result.tpot
        if result.spread:  # else the first to finish was there before twenty tokens
            assert result.spread[0] <= (result.speedup or 0) <= result.spread[1]
        else:
            assert result.speedup is None
        assert result.interval is None, "three prompts are too few"
        if result.column == "KV reuse":
            assert (result.speedup, result.acceptance) == (1.0, None)
            assert result.tokens_per_forward == 1.0
    text = printed(found)
    assert figure("mask_wait").title not in text, "there was no mask"
    for name in ("ttft", "tpot", "speedup", "tokens_per_forward", "accepted"):
        assert figure(name).heading.split()[0] in text
    assert not {"clock", "model", "machine"} & set(text.split()), "all the same"


def test_results_stand_by_model_and_by_machine_where_there_are_several(rows: list[Row]) -> None:
    given = plan("lookup")
    both = replace(given, targets=(LOOP, ModelSpec("fake", "fake")))
    moved = [
        row.model_copy(update={"of": both.identity, "job": row.job + shift, "machine": machine})
        for shift, machine in ((0, "a"), (3, "b"))
        for row in rows
    ]
    moved[0] = moved[0].model_copy(update={"machine": "b"})
    found = results(measured(both, moved))
    lines = [(r.model.split()[0], r.machine, r.prompts) for r in found if r.category == "all"]
    assert lines[::2] == [
        ("fake-loop", "all", 3),
        ("fake-loop", "a", 2),
        ("fake-loop", "b", 1),
        ("fake", "all", 3),
    ]


def clocked(column: int, seconds: Sequence[float]) -> list[Event]:
    """A finished column that wrote one token a step, which took so long each."""
    steps = [step(column, [number], each) for number, each in enumerate(seconds)]
    return [started(column), *steps, Finished(column, "token limit", [])]


def compared(texts: str, columns: Sequence[Sequence[float]]) -> ColumnResult:
    """The results of lookup's steps beside those of KV reuse, a second each, on prompts that are a
    letter each.
    """
    given = replace(plan("lookup"), prompts=tuple(Prompt("any", text) for text in texts))
    boards = [
        board_of("kv lookup", *clocked(0, [1.0] * 41), *clocked(1, seconds)) for seconds in columns
    ]
    rows = [row_of(given, job, [board]) for job, board in zip(given.jobs, boards, strict=True)]
    return results(measured(given, rows))[1]


def test_enough_prompts_give_an_interval() -> None:
    columns = [[1.0] + [1 / speed] * 40 for speed in (1.2, 1.3, 1.4, 1.5)]
    result = compared("abcd", columns)
    assert result.speedup == pytest.approx(1.35)
    assert result.interval is not None
    assert 1 < result.interval[0] < 1.35 < result.interval[1] < 1.8
    once = compared("aaaa", columns)
    assert (once.prompts, once.interval) == (1, None), "repeats of a prompt are no other prompts"


def test_a_short_answer_says_nothing_of_speed() -> None:
    given = replace(plan("lookup"), prompts=(Prompt("any", "a"),))
    board = board_of("kv lookup", *clocked(0, [1.0] * 9), *clocked(1, [1.0] + [0.5] * 8))
    (_, result) = results(measured(given, [row_of(given, given.jobs[0], [board])]))
    assert (result.speedup, result.equal) == (None, 1)
