"""The examples: whole races, each a prompt with the columns and the length that it is about."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from backend.web.lineup import most_columns
from backend.web.offer import Offer

FILE = Path(__file__).resolve().parents[2] / "assets" / "examples.json"


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt, the line-up to race on it, `tokens` to write at most, and a line on what is to be
    seen.
    """

    label: str
    about: str
    prompt: str
    columns: tuple[str, ...]
    tokens: int

    def lineup(self, offer: Offer) -> str:
        """The line-up as text, as far as a race may have it here."""
        return "\n".join(self.columns[: most_columns(offer)])


@cache
def examples() -> tuple[Example, ...]:
    """All of them; the page opens with the first."""
    entries = json.loads(FILE.read_text(encoding="utf-8"))
    return tuple(Example(**entry | {"columns": tuple(entry["columns"])}) for entry in entries)
