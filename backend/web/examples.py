"""Line-ups to begin with: examples, which are whole races, and presets, each of which answers a
question.
"""

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from backend.records.file import from_bytes
from backend.records.record import RaceRecord
from backend.web.assets import asset
from backend.web.lineup import text_of
from backend.web.offer import Offer

#: The first example's race, among the assets, as `race --record` writes it.
OPENING = "opening.json"

#: The example whose columns suit every prompt.
PROSE = "Chat"


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
        """The line-up as text, cut to the number of columns that a race may have here."""
        return "\n".join(self.columns[: offer.most_columns])


@dataclass(frozen=True, slots=True)
class Preset:
    """A line-up that answers a question, and a line on what it shows."""

    name: str
    title: str
    about: str
    lines: tuple[str, ...]


@cache
def examples() -> tuple[Example, ...]:
    """All of them; the page opens with the first."""
    entries = json.loads(asset("examples.json"))
    return tuple(
        Example(
            entry["label"],
            entry["about"],
            entry["prompt"],
            tuple(entry["lineup"].split("\n")),
            entry["tokens"],
        )
        for entry in entries
    )


def for_any_prompt(shown: Any, offer: Offer) -> Any:
    """The line-up with which to go on once an example's prompt has given way to another one, where
    the editor shows `shown`. One that an example made for a grammar gives way, too, to that of the
    example `PROSE`: the grammar fits the example's prompt alone. Every other stays, and what the
    visitor chose in the editor, whose answers have a number.
    """
    lineup = text_of(shown)
    if isinstance(shown, dict) and shown.get("serial"):
        return lineup
    made = [example.lineup(offer) for example in examples()]
    if lineup not in made or "grammar" not in lineup:
        return lineup
    prose = next(example for example in examples() if example.label == PROSE)
    return prose.lineup(offer)


@cache
def presets() -> tuple[Preset, ...]:
    """All of them, whether they can be run here or not."""
    entries = json.loads(asset("presets.json"))
    return tuple(
        Preset(entry["title"], entry["title"], entry["about"], tuple(entry["lineup"].split("\n")))
        for entry in entries
    )


@cache
def opening() -> RaceRecord:
    """The first example's race as it was recorded on the built-in model."""
    return from_bytes(asset(OPENING).encode())
