"""Prompts to measure with: a few of our own, a prompt a line, or JSON, such as the questions of
Spec-Bench (arXiv 2401.07851) and SPEED-Bench (arXiv 2604.09557).
"""

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Len
from pydantic import AliasChoices, BaseModel, BeforeValidator, Field

from backend.errors import DerbyError
from backend.untrusted import UntrustedError, read_json

#: Turns of a question.
MOST_TURNS = 100

#: How JSON begins, and no sentence.
JSON = re.compile(r"""\s*[{[]\s*["'{[\]}]""")

#: What Spec-Bench's tables call "multi-turn": MT-bench's categories. SPEED-Bench has some of the
#: same names for categories of its own; its questions' ids are text.
MT_BENCH = frozenset(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a user says first, and what in the `later` turns of the same chat."""

    category: str
    text: str
    later: tuple[str, ...] = ()


PROMPTS = (
    Prompt("explain", "Explain to a student how a key-value cache speeds up a language model."),
    Prompt(
        "quote",
        "Repeat this notice word for word, then add one sentence: The library opens at nine on "
        "weekdays and at ten on Saturdays. On Sundays the library is closed. Books are lent for "
        "three weeks; films are lent for one week.",
    ),
    Prompt("code", "Write a Python function that returns the n-th Fibonacci number, with tests."),
    Prompt("list", "List ten European capitals, one a line, each with its country."),
    Prompt("story", "Tell a short story about a horse that wins its first race."),
    Prompt("reason", "A train leaves at 9:40 and arrives at 12:05. How long is the ride, and why?"),
)


def _user_turns(turns: Any) -> Any:
    """What the user says in a prompt, in turns or in a chat, whose answers the model gives anew."""
    if not isinstance(turns, list):
        return [turns]
    texts = list[Any]()
    for turn in turns:
        match turn:
            case {"role": "user", "content": text} | {"from": "human", "value": text}:
                texts.append(text)
            case {"role": "assistant"} | {"from": "gpt"}:
                pass
            case _:
                texts.append(turn)
    return texts


class _Question(BaseModel):
    """A question of any file, as far as it is used."""

    category: str = "own"
    question_id: int | str = ""
    turns: Annotated[
        list[Annotated[str, Field(pattern=r"\S")]],
        Len(1, MOST_TURNS),
        BeforeValidator(_user_turns),
        Field(validation_alias=AliasChoices("turns", "messages", "prompt", "conversations")),
    ]


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a file, as `prompts_in` has them. Raises DerbyError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DerbyError(f"Cannot read prompts from {path}: {error}.") from error
    return prompts_in(text, str(path))


def prompts_in(text: str, where: str) -> tuple[Prompt, ...]:
    """The prompts of a text, which errors call `where`: a prompt a line, or questions in JSON, one
    a line or in a list. Raises DerbyError, which names the line or item that is no question.
    """
    text = text.removeprefix("\ufeff")
    lines = [(f"line {n}", s.strip()) for n, s in enumerate(text.split("\n"), 1) if s.strip()]
    if lines and not JSON.match(text):
        return tuple(Prompt("own", line) for _, line in lines)
    with suppress(ValueError, RecursionError):  # several lines of JSON are none as a whole
        whole = json.loads(text)
        items = whole if isinstance(whole, list) else [whole]
        items = [{"prompt": item} if isinstance(item, str) else item for item in items]
        lines = [(f"item {n}", json.dumps(item)) for n, item in enumerate(items, 1)]
    if not lines:
        raise DerbyError(f"{where} has no prompts: write one a line, or JSON.")
    return tuple(_question(line, f"{where}, {place}") for place, line in lines)


def _question(line: str, where: str) -> Prompt:
    try:
        data = line.encode(errors="surrogatepass")
        question: _Question = read_json(_Question, data, "it")
    except UntrustedError as error:
        raise DerbyError(
            f"{where} is no question ({error.clause}): write a prompt a line, or JSON with prompt, "
            "turns or messages."
        ) from error
    first, *later = question.turns
    merged = isinstance(question.question_id, int) and question.category in MT_BENCH
    return Prompt("multi-turn" if merged else question.category, first, tuple(later))


def sample(prompts: tuple[Prompt, ...], count: int) -> tuple[Prompt, ...]:
    """`count` of the prompts, spread evenly over the file, so that every category is in; 0: all."""
    if not 0 < count < len(prompts):
        return prompts
    return tuple(prompts[i * len(prompts) // count] for i in range(count))
