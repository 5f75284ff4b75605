"""Spec-Bench's and SPEED-Bench's questions: what is read, asked turn after turn, and printed."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lib import without_template
from typer.testing import CliRunner

from backend.bench.plan import Plan
from backend.bench.prompts import PLACEHOLDER, Prompt, read_prompts
from backend.bench.rows import Row, RowFile, left_of, row_of
from backend.bench.runner import boards_of, raced, run
from backend.bench.summary import measured, results
from backend.bench.tables import by_category
from backend.cli.main import app
from backend.errors import DerbyError
from backend.events import Failed
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import parse_column
from backend.text import ByteTokenizer
from backend.types import ModelSpec, Request

#: A line of Spec-Bench's file, of SPEED-Bench's as it is published, and as its own script makes it.
SPEC = {"question_id": 81, "category": "writing", "turns": ["Write a line.", "Now shorter."]}
PUBLISHED = {"question_id": "4f", "category": "writing", "source": "x", "turns": ["Tell a joke."]}
PREPARED = {
    "question_id": "9a",
    "category": "qa",
    "multiturn": True,
    "messages": [{"role": "user", "content": text} for text in ("Who?", "When?", "Where?")],
}
READ = (
    Prompt("multi-turn", "Write a line.", ("Now shorter.",)),
    Prompt("writing", "Tell a joke."),
    Prompt("qa", "Who?", ("When?", "Where?")),
)


def file_of(folder: Path, *lines: dict[str, Any]) -> Path:
    path = folder / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    return path


def plan(*columns: str, model: str = "fake", tokens: int = 24) -> Plan:
    spec = ModelSpec(model, "fake") if model.startswith("fake") else ModelSpec(model)
    return Plan(READ, tuple(map(parse_column, columns)), Request("-", tokens), (spec,))


def here(race: Race) -> Scoreboard:
    return raced(race, MODELS)


MODELS = LoadedModels()


def test_both_files_are_read_with_all_their_turns(tmp_path: Path) -> None:
    """MT-bench's categories are one in Spec-Bench's tables; SPEED-Bench has them for itself."""
    assert read_prompts(file_of(tmp_path, SPEC, PUBLISHED, PREPARED)) == READ


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (PUBLISHED | {"turns": [f"{PLACEHOLDER} USING SPECDEC_BENCH"]}, "prepare.py"),
        (
            PREPARED | {"messages": [{"role": "assistant", "content": "I."}]},
            "must be a valid string",
        ),
        ({"category": "qa"}, "'turns' is missing"),
        (SPEC | {"turns": ["Why?", " "]}, "is not a question"),
    ],
)
def test_a_line_that_cannot_be_asked_is_named(
    line: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(DerbyError, match=f"line 2.*{said}"):
        read_prompts(file_of(tmp_path, SPEC, line))


def test_a_parquet_file_is_refused_with_the_conversion(tmp_path: Path) -> None:
    path = tmp_path / "test.parquet"
    path.write_bytes(b"PAR1\x15\xffPAR1")
    with pytest.raises(DerbyError, match=r"pandas\.read_parquet"):
        read_prompts(path)


def turns_of(given: Plan, number: int) -> tuple[list[Race], list[Scoreboard]]:
    races = list[Race]()

    def race(each: Race) -> Scoreboard:
        races.append(each)
        return here(each)

    return races, boards_of(given.jobs[number], race)


def test_every_turn_is_asked_on_what_kv_reuse_answered_before() -> None:
    """Of all columns, also of one that wrote less; each reads the whole chat."""
    given = plan("lookup", "stateless")
    races, boards = turns_of(given, 2)
    answers = [board.scores[0].text for board in boards]
    asked = [race.request.prompt for race in races]
    assert asked == ["Who?", "When?", "Where?"]
    for turn, (race, board) in enumerate(zip(races, boards, strict=True)):
        assert race.request.earlier == tuple(zip(asked, answers, strict=True))[:turn]
        said = "".join(
            f"User: {one}\nAnswer: {two}\n"
            for one, two in zip(asked[:turn], answers[:turn], strict=True)
        )
        prompt = f"{said}User: {asked[turn]}\nAnswer: ".encode()
        assert {score.prompt_tokens for score in board.scores} == {len(prompt)}
    assert len({*answers, ""}) == 4


@pytest.mark.model
def test_the_built_in_model_answers_the_chat_and_goes_on_behind_its_end() -> None:
    """The second turn is the chat template's of the whole chat, and fixed lengths are fixed."""
    given = plan("lookup", "transformers", model="built-in")
    question = Prompt("own", "Say yes.", ("Say no.",))
    given = replace(given, prompts=[question], request=Request("-", 40, ignore_eos=True))
    races, (first, second) = turns_of(given, 0)
    fast: Any = MODELS.get(ModelSpec(), print).tokenizer
    chat = [
        {"role": "user", "content": "Say yes."},
        {"role": "assistant", "content": first.scores[0].text},
        {"role": "user", "content": "Say no."},
    ]
    text = fast.fast.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    tokens = fast.fast.encode(text, add_special_tokens=False)
    request = races[1].request
    assert fast.encode(request.prompt, chat=True, earlier=request.earlier) == tokens
    assert {score.prompt_tokens for score in second.scores} == {len(tokens)}
    for board in (first, second):
        base, *others = board.scores
        assert [score.tokens for score in others] == [base.tokens] * 2
        assert len(base.tokens) == 40


def test_an_interrupted_run_comes_to_the_same_rows(tmp_path: Path) -> None:
    """It stops within a question's turns, which is then asked anew. The rows tell all turns."""
    given, file = plan("lookup"), tmp_path / "rows.jsonl"

    def interrupted(race: Race) -> Scoreboard:
        if race.request.prompt == "Where?":
            raise KeyboardInterrupt
        return here(race)

    def measure(race: Callable[[Race], Scoreboard]) -> list[Row]:
        kept = RowFile(file, given)
        with suppress(KeyboardInterrupt):
            for row in run(given, kept.rows, race, lambda _: None):
                kept.add(row)
        return RowFile(file, given).rows

    assert [job.number for job in left_of(given, measure(interrupted))] == [2]
    whole = list(run(given, [], here, lambda _: None))
    assert [len(row.turns) for row in whole] == [2, 1, 3]
    for ours, rows in zip(measured(given, measure(here)), measured(given, whole), strict=True):
        assert (ours.column, ours.prompt) == (rows.column, rows.prompt)
        assert ours.figures.positions == rows.figures.positions
        assert ours.figures.equal


def test_a_question_counts_once_with_all_its_turns() -> None:
    given = plan("lookup")
    found = measured(given, run(given, [], here, lambda _: None))
    assert len(found) == 2 * 6
    for each in (each for each in results(found) if each.category == "all"):
        assert each.prompts == each.equal == 3
        assert each.interval is None, "six turns, but three questions"


def test_without_a_chat_template_only_the_first_turn_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = plan("lookup")
    raw = replace(given, request=Request("-", 8, chat=False))
    assert [len(row.turns) for row in run(raw, [], here, lambda _: None)] == [1, 1, 1]
    monkeypatch.setattr(ByteTokenizer, "encode", without_template)
    rows = list(run(given, [], here, lambda _: None))
    assert [len(row.turns) for row in rows] == [1, 1, 1]
    assert left_of(given, rows) == []


def test_the_chat_ends_where_kv_reuse_fails() -> None:
    """There is no answer to go on from; the row says so and the question is asked again."""
    given = plan("lookup")
    (board,) = boards_of(given.jobs[1], here)
    board.add(Failed(0, "The device is gone."))
    assert given.jobs[2].next_race([board]) is None
    assert left_of(given, [row_of(given, given.jobs[2], [board])]) == list(given.jobs)


def test_the_table_has_a_line_a_column_and_a_cell_a_category() -> None:
    given = plan("lookup", "stateless", model="fake-loop", tokens=60)
    found = results(measured(given, run(given, [], here, lambda _: None)))
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in by_category(found).splitlines()
    ]
    heads = ["column", "text equal", "all (3)", "multi-turn (1)", "writing (1)", "qa (1)"]
    assert lines[0] == heads
    assert [line[0] for line in lines[2:]] == ["KV reuse", "Prompt lookup", "Stateless"]
    cells = {line[0]: dict(zip(heads, line, strict=True)) for line in lines[2:]}
    for each in found:
        speedup, tokens, *accepted = cells[each.column][f"{each.category} ({each.prompts})"].split(
            ", "
        )
        assert float(speedup) == pytest.approx(each.speedup, abs=0.006)
        assert float(tokens) == pytest.approx(each.tokens_per_forward, abs=0.006)
        assert accepted == ([] if each.acceptance is None else [f"{each.acceptance:.0%}"])
    assert {line[1] for line in lines[2:]} == {"3 of 3"}


def test_bench_prints_both_tables_and_its_json(tmp_path: Path) -> None:
    command = ["bench", "--prompts", str(file_of(tmp_path, SPEC, PREPARED)), "--wait", "0"]
    command += ["--model", "fake-loop", "--engine", "fake", "-c", "lookup", "--fixed-length"]
    printed = CliRunner().invoke(app, [*command, "--max-new-tokens", "20"]).stdout
    assert "exactly 20 new tokens" in printed
    assert "| multi-turn (1)" in printed
    assert {each["category"] for each in json.loads(printed.splitlines()[-1])} == {
        "all",
        "multi-turn",
        "qa",
    }
