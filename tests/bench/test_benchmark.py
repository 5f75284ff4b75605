"""A benchmark is a plan, rows of what was measured, and medians over rows.

Held here: who begins rotates; a run that was interrupted, or lacked a column, goes on from its rows
and comes to the same; rows of another plan are refused; a prompt counts once, however often it was
asked; without enough prompts there is no interval; a chat goes on from what KV reuse answered.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.bench import runner
from backend.bench.plan import Plan
from backend.bench.prompts import PROMPTS, Prompt
from backend.bench.rows import Figures, PromptRow, RowFile, remaining, row_of
from backend.bench.runner import raced, run, wait_for_quiet
from backend.bench.summary import (
    HEADINGS,
    by_category,
    cells,
    conclusion,
    failures,
    measured,
    results,
)
from backend.errors import DerbyError
from backend.events import Conditions, Failed
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.result import NOISY
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request
from page.bench import outputs_of

LOOP = ModelSpec("fake-loop", "fake")
CHAT = Prompt("chat", "Who?", ("When?", "Where?"))
MODELS = LoadedModels()


def plan(*columns: str, prompts: int = 3, repeats: int = 1, tokens: int = 40) -> Plan:
    chosen = PROMPTS[:prompts] * repeats
    return Plan(chosen, tuple(map(parse_column, columns)), Request("-", tokens), LOOP)


def here(race: Race) -> Scoreboard:
    return raced(race, MODELS)


def rows_of(of: Plan) -> list[PromptRow]:
    return list(run(of, [], here, lambda _: None))


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 3))
def test_every_column_is_first_equally_often(columns: int, prompts: int, repeats: int) -> None:
    names = [f"lookup:k={k}" for k in range(1, columns)]
    jobs = plan(*names, prompts=prompts, repeats=repeats).jobs
    assert [job.number for job in jobs] == list(range(prompts * repeats))
    assert {job.race.columns[0] for job in jobs} == {parse_column("kv")}
    first = Counter(job.race.alone_from for job in jobs)
    assert max(first.values()) - min(first[place] for place in range(columns)) <= 1
    texts = Counter((job.race.request.prompt, job.prompt) for job in jobs)
    assert set(texts.values()) == {repeats}, "the same text has the same number"


def test_a_plan_is_another_one_if_anything_of_it_is() -> None:
    plans = [
        plan("lookup"),
        plan("lookup:k=3"),
        plan("lookup", prompts=2),
        plan("lookup", repeats=2),
        plan("lookup", tokens=39),
        replace(plan("lookup"), target=ModelSpec("fake", "fake")),
        replace(plan("lookup"), anywhere=True),
    ]
    assert len({one.identity for one in plans}) == len(plans)
    assert plan("lookup").identity == plans[0].identity


def go_on(file: Path, of: Plan, race: Callable[[Race], Scoreboard] = here) -> list[PromptRow]:
    """The rows of a file, after a run that may end early."""
    store = RowFile(file, of)
    with suppress(KeyboardInterrupt):
        for row in run(of, store.rows, race, lambda _: None):
            store.add(row)
    return RowFile(file, of).rows


def test_an_interrupted_run_goes_on_and_comes_to_the_same(tmp_path: Path) -> None:
    """Interrupted within a chat's turns."""
    of, file = replace(plan("lookup"), prompts=(*PROMPTS[:2], CHAT)), tmp_path / "rows.jsonl"
    prompts = list[str]()

    def interrupted(race: Race) -> Scoreboard:
        if race.request.prompt == "Where?":
            raise KeyboardInterrupt
        return here(race)

    def counted(race: Race) -> Scoreboard:
        prompts.append(race.request.prompt)
        return here(race)

    assert [job.number for job in remaining(of, go_on(file, of, interrupted))] == [2]
    rows = go_on(file, of, counted)
    assert prompts == ["Who?", "Who?", "When?", "Where?"], "the first one to warm up"
    assert [len(row.turns) for row in rows] == [1, 1, 3]
    for one, other in zip(measured(of, rows), measured(of, rows_of(of)), strict=True):
        assert (one.column, one.prompt) == (other.column, other.prompt)
        assert one.figures
        assert other.figures
        assert one.figures.accepted == other.figures.accepted
        assert one.figures.equal
    assert go_on(file, of, lambda _: pytest.fail("measured again")) == rows


def test_a_prompt_of_which_a_column_failed_is_measured_again(tmp_path: Path) -> None:
    of, file = plan("lookup"), tmp_path / "rows.jsonl"
    rows, store = go_on(file, of), RowFile(file, of)
    failed = rows[1].model_copy(update={"turns": ((rows[1].turns[0][0], "It is gone."),)})
    store.add(failed)
    assert failures(of, store.rows) == ["Prompt lookup, prompt 2: It is gone."]
    assert [job.number for job in remaining(of, store.rows)] == [1]
    assert not failures(of, go_on(file, of))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[", "line 1 is not a benchmark result"),
        ({"turns": [["", 5]]}, "line 1 is not a benchmark result"),
        ({"of": "another"}, "belong to another benchmark"),
        ({"job": 99}, "belong to another benchmark"),
        ({"turns": [[""]]}, "belong to another benchmark"),
        (None, "cannot be written"),
    ],
)
def test_a_file_of_something_else_is_refused(
    line: str | dict[str, object] | None, reason: str, tmp_path: Path
) -> None:
    of, file = plan("lookup"), tmp_path / "rows.jsonl"
    row = {"of": of.identity, "job": 0, "turns": [["", ""]]}
    if line is None:
        file = tmp_path / "none" / "rows.jsonl"
    else:
        text = line if isinstance(line, str) else json.dumps(row | line)
        file.write_text(f"{text}\n", encoding="utf-8")
    with pytest.raises(DerbyError, match=reason):
        RowFile(file, of)


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ("stateless kv lookup", ["Stateless", "KV reuse", "Prompt lookup"]),
        ("stateless lookup", ["KV reuse", "Stateless", "Prompt lookup"]),
    ],
)
def test_every_column_is_compared_with_a_plain_one_in_all_and_by_category(
    columns: str, names: list[str]
) -> None:
    of = replace(plan(*columns.split()), prompts=(*PROMPTS[:2], CHAT))
    measurements = measured(of, rows_of(of))
    assert len(measurements) == len(names) * (1 + 1 + 3)
    summary = results(measurements)
    categories = ["all", *(prompt.category for prompt in of.prompts)]
    assert [(result.category, result.column) for result in summary] == [
        (category, name) for category in categories for name in names
    ]
    for result in summary:
        assert result.prompts == result.equal == (3 if result.category == "all" else 1)
        assert result.interval is None, "three prompts are too few, however many turns"
        assert len(cells(result)) == len(HEADINGS)
        if result.column == "KV reuse":
            assert (result.speedup, result.acceptance) == (1.0, None)
            assert result.tokens_per_pass == 1.0
    heads, _, *lines = [line.strip("| ").split(" | ") for line in by_category(summary).splitlines()]
    assert heads == ["column", "all (3)", *(f"{category} (1)" for category in categories[1:])]
    assert [line[0] for line in lines] == names
    assert all(len(line) == len(heads) for line in lines)


def test_a_failed_column_is_named_and_stands_in_the_table_beside_the_others() -> None:
    of = plan("lookup", "stateless", prompts=2)
    boards = [here(job.race) for job in of.jobs]
    for board in boards:
        board.add(Failed(1, "The device is gone."))
    boards[0].add(Conditions(0.2))
    rows = [row_of(of, job, [board]) for job, board in zip(of.jobs, boards, strict=True)]
    assert rows[0].others == 0.2
    assert failures(of, rows) == ["Prompt lookup, 2 prompts: The device is gone."]
    base, failed, other = results(measured(of, rows))[:3]
    assert (failed.prompts, failed.left_out, failed.equal, failed.speedup) == (2, 2, 0, None)
    assert {len(cells(base)), len(cells(failed))} == {len(HEADINGS)}
    status, table, csv = outputs_of(of, rows, over=True)
    assert "The device is gone." in status
    assert (len(table), len(csv.splitlines())) == (3, 1 + 2 * 2), "who failed has no figures"
    assert (base.equal, other.equal) == (2, 2)
    boards[0].add(Failed(0, "Gone too."))
    rows = [row_of(of, of.jobs[0], boards[:1])]
    assert not any(one.figures for one in measured(of, rows)), "there is nothing to compare with"
    assert len(failures(of, rows)) == 2


def races_of(of: Plan) -> tuple[list[Race], list[Scoreboard]]:
    """The first job's races and their boards."""
    races, boards = list[Race](), list[Scoreboard]()
    while (turn := of.jobs[0].next_race(boards)) is not None:
        races.append(turn)
        boards.append(here(turn))
    return races, boards


def test_every_turn_is_asked_on_what_kv_reuse_answered_before() -> None:
    """Of all columns, also of one that wrote less; each reads the whole chat."""
    of = replace(plan("lookup", "stateless"), prompts=(CHAT,), target=ModelSpec("fake", "fake"))
    races, boards = races_of(of)
    questions = [race.request.prompt for race in races]
    answers = [board.scores[0].text for board in boards]
    assert questions == ["Who?", "When?", "Where?"]
    assert len({*answers, ""}) == 4
    for turn, (race, board) in enumerate(zip(races, boards, strict=True)):
        chat = list(zip(questions, answers, strict=True))[:turn]
        assert race.request.earlier == tuple(chat)
        text = "".join(f"User: {question}\nAnswer: {answer}\n" for question, answer in chat)
        prompt = f"{text}User: {questions[turn]}\nAnswer: ".encode()
        assert {score.prompt_tokens for score in board.scores} == {len(prompt)}


def test_without_the_chat_template_only_the_first_turn_is_asked() -> None:
    raw = replace(plan("lookup"), prompts=(CHAT,), request=Request("-", 8, chat=False))
    assert [len(row.turns) for row in rows_of(raw)] == [1]


def test_the_chat_ends_where_kv_reuse_fails() -> None:
    """There is no answer to go on from; the row says so and the question is asked again."""
    of = replace(plan("lookup"), prompts=(CHAT,))
    board = here(of.jobs[0].race)
    board.add(Failed(0, "The device is gone."))
    assert of.jobs[0].next_race([board]) is None
    assert remaining(of, [row_of(of, of.jobs[0], [board])]) == list(of.jobs)


BASE = Figures(
    speedup=1.0,
    ttft=9.0,
    tpot=9.0,
    tokens_per_pass=1.0,
    drafted=0,
    accepted=0,
    equal=True,
    one_clock=True,
)


def compared(
    texts: str, figures: Sequence[dict[str, Any]], others: float = 0.0
) -> tuple[Plan, list[PromptRow]]:
    """Prompts that are a letter each, and rows with what lookup's figures have of their own."""
    of = replace(plan("lookup"), prompts=tuple(Prompt("any", text) for text in texts))
    turns = [((BASE, BASE.model_copy(update=changes)),) for changes in figures]
    return of, [
        PromptRow(of=of.identity, job=number, others=others, turns=turn)
        for number, turn in enumerate(turns)
    ]


@pytest.mark.parametrize(("others", "doubt"), [(0.0, ""), (0.3, "30%"), (0.7, "70%")])
def test_a_benchmark_on_a_noisy_machine_names_no_faster_column(others: float, doubt: str) -> None:
    of, rows = compared("abcd", [{"speedup": speedup} for speedup in (1.9, 2.0, 2.0, 2.1)], others)
    sentence = conclusion(of, results(measured(of, rows)), rows)
    assert ("Prompt lookup 2.00" in sentence) == (others <= NOISY)
    assert doubt in sentence
    assert bool(doubt) == ("other programs" in sentence)


def test_enough_prompts_give_an_interval_and_repeats_are_no_other_prompts() -> None:
    figures = [{"speedup": speedup} for speedup in (1.2, 1.3, 1.4, 1.5)]
    result, repeated = (
        results(measured(*compared(texts, figures)))[1] for texts in ("abcd", "aaaa")
    )
    assert result.speedup == pytest.approx(1.35)
    assert result.interval is not None
    assert 1 < result.interval[0] < 1.35 < result.interval[1] < 1.8
    assert (repeated.prompts, repeated.interval) == (1, None)


@pytest.mark.parametrize("one_clock", [True, False])
def test_shares_are_of_all_guesses_and_two_clocks_have_no_interval(one_clock: bool) -> None:
    figures = [
        {"speedup": speedup, "drafted": 10, "accepted": number, "one_clock": one_clock}
        for number, speedup in enumerate((1.5, 2.5, 3.5, 4.5, 0.0))
    ]
    _, result = results(measured(*compared("abcde", figures)))  # one category is all there is
    assert (result.speedup, result.acceptance) == (3.0, 10 / 50), "0: too short to tell"
    assert (result.left_out, result.equal) == (1, 5)
    assert (result.interval is None) == (not one_clock)
    assert result.faster == one_clock


@pytest.mark.parametrize(
    ("shares", "sentences"), [([0.1], 0), ([0.6, 0.4, 0.02], 1), ([0.5] * 5, 2)]
)
def test_a_measurement_waits_for_a_quiet_machine_and_says_if_there_is_none(
    shares: list[float], sentences: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ledger:
        def conditions(self) -> Conditions:
            return Conditions(shares.pop(0))

    monkeypatch.setattr(runner, "Ledger", Ledger)
    monkeypatch.setattr(runner, "LOOK", 0)
    lines: list[str] = []
    wait_for_quiet(5, lines.append)
    assert (len(lines), shares) == (sentences, [])
