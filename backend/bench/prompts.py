"""Prompts to measure with: a few of our own, or the questions of Spec-Bench (arXiv 2401.07851),
SPEED-Bench (arXiv 2604.09557) or a file like theirs.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Len
from pydantic import AliasChoices, BaseModel, BeforeValidator, Field

from backend.errors import DerbyError
from backend.untrusted import UntrustedError, read_json

#: Prompts that one run may be asked for.
MOST_PROMPTS = 1_000_000

#: Turns of a question, and JSON values of its line.
MOST_TURNS, MOST_VALUES = 100, 10_000

#: What Spec-Bench's tables call "multi-turn": MT-bench's categories. SPEED-Bench has some of the
#: same names for categories of its own; its questions' ids are text.
MT_BENCH = frozenset(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
)

#: What SPEED-Bench as it is published has in place of texts that belong to others.
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a user says first, and what in the `later` turns of the same chat."""

    category: str
    text: str
    later: tuple[str, ...] = ()


def _said(turn: Any) -> Any:
    """What the user says in a turn: text, or a message, as SPEED-Bench's own script writes it."""
    match turn:
        case {"role": "user", "content": said}:
            return said
    return turn


class _Question(BaseModel):
    """A line of either file, as far as it is used."""

    category: str
    question_id: int | str = ""
    turns: Annotated[
        list[Annotated[str, BeforeValidator(_said), Field(pattern=r"\S")]],
        Len(1, MOST_TURNS),
        Field(validation_alias=AliasChoices("turns", "messages")),
    ]


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


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """The questions of a JSON Lines file with `category` and `turns`, or `messages` of a user.

    Raises DerbyError naming the line that is not of that form.
    """
    try:
        data = path.read_bytes()
        if data.startswith(b"PAR1"):
            raise DerbyError(
                f"{path} is a Parquet file: make JSON Lines of it with pandas.read_parquet(FILE)"
                '.to_json(NEW, orient="records", lines=True), and name those.'
            )
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise DerbyError(f"Cannot read prompts from {path}: {error}.") from error
    return questions_in(text, str(path))


def questions_in(text: str, where: str) -> tuple[Prompt, ...]:
    """The same of a text, which is called `where` in errors."""
    lines = enumerate(text.split("\n"), 1)
    prompts = [_question(line, f"{where}, line {n}") for n, line in lines if line.strip()]
    if not prompts:
        raise DerbyError(f"{where} has no questions.")
    return tuple(prompts)


def _question(line: str, where: str) -> Prompt:
    try:
        found: _Question = read_json(
            _Question, line.encode(errors="surrogatepass"), "it", MOST_VALUES
        )
    except UntrustedError as error:
        raise DerbyError(
            f"{where} is not a question with a category and turns: {error.clause}."
        ) from error
    first, *later = found.turns
    if first.startswith(PLACEHOLDER):
        raise DerbyError(
            f"{where} is a placeholder: SPEED-Bench's prepare.py fetches the texts of others, so "
            "run it and name the file that it writes."
        )
    merged = isinstance(found.question_id, int) and found.category in MT_BENCH
    return Prompt("multi-turn" if merged else found.category, first, tuple(later))


def prompts_in(text: str, where: str) -> tuple[Prompt, ...]:
    """The prompts of a text: questions in JSON Lines, or a prompt a line. Raises DerbyError."""
    if text.lstrip().startswith("{"):
        return questions_in(text, where)
    lines = tuple(Prompt("own", line.strip()) for line in text.split("\n") if line.strip())
    if not lines:
        raise DerbyError(f"{where} has no prompts: write one per line, or JSON Lines.")
    return lines


def sample(prompts: tuple[Prompt, ...], count: int) -> tuple[Prompt, ...]:
    """`count` of the prompts, spread evenly over the file, so that every category is in."""
    if not 0 < count < len(prompts):
        return prompts
    return tuple(prompts[i * len(prompts) // count] for i in range(count))
