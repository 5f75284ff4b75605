"""Spec-Bench's and SPEED-Bench's questions: both files are read, and every turn is asked on what KV
reuse answered before.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.bench.plan import Plan
from backend.bench.prompts import Prompt, prompts_in, read_prompts
from backend.bench.rows import remaining, row_of
from backend.bench.runner import raced, run
from backend.bench.summary import by_category, measured, results
from backend.errors import DerbyError
from backend.events import Failed
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import parse_column
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
MODELS = LoadedModels()


def file_of(folder: Path, *lines: dict[str, Any]) -> Path:
    path = folder / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    return path


def plan(*columns: str, model: str = "fake", tokens: int = 24) -> Plan:
    chosen = tuple(map(parse_column, columns))
    return Plan(READ, chosen, Request("-", tokens), ModelSpec(model, "fake"))


def here(race: Race) -> Scoreboard:
    return raced(race, MODELS)


def test_both_files_are_read_with_all_their_turns(tmp_path: Path) -> None:
    """MT-bench's categories are one in Spec-Bench's tables; SPEED-Bench has them for itself."""
    path = file_of(tmp_path, SPEC, PUBLISHED, PREPARED)
    assert read_prompts(path) == READ


WHY, HOW = Prompt("own", "Why?"), Prompt("own", "[INST] How?")
ASKED = {"prompt": "Why?"}
CHAT = ({"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."})


@pytest.mark.parametrize(
    ("text", "prompts"),
    [
        ("Why?\n\n[INST] How?\r\n", (WHY, HOW)),
        ("[INST] How?\nWhy?", (HOW, WHY)),
        (json.dumps(ASKED) + "\n\n" + json.dumps(ASKED), (WHY, WHY)),
        (json.dumps([ASKED, SPEC], indent=2), (WHY, READ[0])),
        (json.dumps(PREPARED, indent=2), (READ[2],)),
        (json.dumps(["Why?", "[INST] How?"]), (WHY, HOW)),
        (json.dumps([{"id": "1", "conversations": CHAT}]), (WHY,)),
        (json.dumps({"messages": [{"role": "user", "content": "Why?"}]}), (WHY,)),
    ],
)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_prompts_are_lines_or_json(
    text: str, prompts: tuple[Prompt, ...], mark: str, tmp_path: Path
) -> None:
    path = tmp_path / "prompts"
    path.write_text(mark + text, encoding="utf-8")
    assert read_prompts(path) == prompts


@pytest.mark.parametrize(
    "text",
    [
        '[{"prompt": "Why?"}, {"prompt": ',
        '{"data": ["Why?"]}',
        '[{"instruction": "Why?"}]',
        '{"messages": [{"role": "system", "content": "Be kind."}]}',
        "['Why?']",
        "[" * 99_999,
        "[]",
        " \n",
    ],
)
def test_what_looks_like_json_and_holds_no_prompts_is_refused(text: str) -> None:
    with pytest.raises(DerbyError, match="write"):
        prompts_in(text, "The file")


@pytest.mark.parametrize(
    "line",
    [
        PREPARED | {"messages": [{"role": "assistant", "content": "I."}]},
        {"category": "qa"},
        ASKED | {"prompt": ""},
        SPEC | {"turns": ["Why?", " "]},
    ],
)
def test_a_line_that_cannot_be_asked_is_named(line: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DerbyError, match="line 2"):
        read_prompts(file_of(tmp_path, SPEC, line))


def races_of(of: Plan, number: int) -> tuple[list[Race], list[Scoreboard]]:
    """A job's races and their boards."""
    races, boards = list[Race](), list[Scoreboard]()
    while (turn := of.jobs[number].next_race(boards)) is not None:
        races.append(turn)
        boards.append(here(turn))
    return races, boards


def test_every_turn_is_asked_on_what_kv_reuse_answered_before() -> None:
    """Of all columns, also of one that wrote less; each reads the whole chat."""
    races, boards = races_of(plan("lookup", "stateless"), 2)
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


def test_a_question_counts_once_with_all_its_turns_and_has_a_cell_in_its_category() -> None:
    of = plan("lookup", "stateless", model="fake-loop", tokens=60)
    measurements = measured(of, run(of, [], here, lambda _: None))
    assert len(measurements) == 3 * 6
    summary = results(measurements)
    for result in summary:
        assert result.prompts == result.equal == (3 if result.category == "all" else 1)
        assert result.interval is None, "six turns, but three questions"
    heads, _, *lines = [line.strip("| ").split(" | ") for line in by_category(summary).splitlines()]
    assert heads == ["column", "all (3)", "multi-turn (1)", "writing (1)", "qa (1)"]
    assert [line[0] for line in lines] == ["KV reuse", "Prompt lookup", "Stateless"]
    assert all(len(line) == len(heads) for line in lines)


def test_without_the_chat_template_only_the_first_turn_is_asked() -> None:
    of = plan("lookup")
    raw = replace(of, request=Request("-", 8, chat=False))
    assert [len(row.turns) for row in run(raw, [], here, lambda _: None)] == [1, 1, 1]


def test_the_chat_ends_where_kv_reuse_fails() -> None:
    """There is no answer to go on from; the row says so and the question is asked again."""
    of = plan("lookup")
    board = here(of.jobs[1].race)
    board.add(Failed(0, "The device is gone."))
    assert of.jobs[2].next_race([board]) is None
    assert remaining(of, [row_of(of, of.jobs[2], [board])]) == list(of.jobs)
