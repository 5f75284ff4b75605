"""Prompts to measure with: a few of our own, or a file in Spec-Bench's format."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Len
from pydantic import BaseModel

from backend.errors import DerbyError
from backend.untrusted import UntrustedError, read_json

#: Prompts that one run may be asked for.
MOST_PROMPTS = 1_000_000


#: JSON values of a question.
MOST_TURNS = 10_000


@dataclass(frozen=True, slots=True)
class Prompt:
    category: str
    text: str


class _Question(BaseModel):
    """A line of Spec-Bench's file, as far as it is used."""

    category: str
    turns: Annotated[list[str], Len(1)]


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
    """The first turn of every question in a JSON Lines file with `category` and `turns`.

    Raises DerbyError naming the line that is not of that form.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DerbyError(f"Cannot read prompts from {path}: {error}.") from error
    return questions_in(text, str(path))


def questions_in(text: str, where: str) -> tuple[Prompt, ...]:
    """The same of a text, which is called `where` in errors."""
    prompts: list[Prompt] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            found = _question(line, f"{where}, line {number}")
            prompts.append(Prompt(found.category, found.turns[0]))
    if not prompts:
        raise DerbyError(f"{where} has no questions.")
    return tuple(prompts)


def _question(line: str, where: str) -> "_Question":
    try:
        return read_json(_Question, line.encode(errors="surrogatepass"), "it", MOST_TURNS)
    except UntrustedError as error:
        raise DerbyError(
            f"{where} is not a question with a category and turns: {error.clause}."
        ) from error


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
