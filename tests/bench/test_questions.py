"""Prompts: Spec-Bench's and SPEED-Bench's files, lines of text, and JSON of several forms."""

import json
from pathlib import Path
from typing import Any

import pytest

from backend.bench.prompts import Prompt, prompts_in, read_prompts
from backend.errors import DerbyError

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
        '{"messages": [{"role": "system", "content": "Be kind."}]}',
        "[" * 99_999,
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
