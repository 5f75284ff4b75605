"""The editor of a line-up: what the page shows of the text, and the changes that its user makes
there.

The text is what counts (lineup.py). The editor draws the state that `answer` makes of it, and sends
back actions; each action becomes a change of the text.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len
from pydantic import Field

from backend.errors import DerbyError
from backend.grammar.sources import shipped
from backend.models.files import model_title
from backend.strategies.column import Column, OwnModel, settings_of
from backend.strategies.declaration import Strategy
from backend.strategies.libraries import SERVER
from backend.strategies.registry import strategies
from backend.strategies.settings import (
    NO_GRAMMAR,
    OWN,
    Choice,
    Flag,
    GrammarChoice,
    ModelChoice,
    ServerChoice,
    Setting,
    WholeNumber,
)
from backend.untrusted import Untrusted, UntrustedError, read_as
from backend.web.examples import Preset, presets
from backend.web.lineup import ANY_OWN, Lineup, lines_of, read_column
from backend.web.offer import Offer

#: What a column that names no engine, precision, device or model of its own runs on.
AS_THE_RACE = ("", "as the race")

#: What a column may name of its own, beside its settings: the label and the line of help.
PLACE = {
    "model": ("Model", "The target; drafts are set above."),
    "engine": ("Engine", "The library that runs the model."),
    "precision": ("Precision", "Number format of the weights."),
    "device": ("Device", "CPU or GPU."),
}

Index = Annotated[int, Ge(0)]


class _Sent(Untrusted):
    """What the editor sends: its text, what is done to it, and a number that is given back."""

    text: str = ""
    action: Any = None
    serial: Annotated[int, Ge(0), Le(2**53 - 1)] = 0


class _Choose(Untrusted):
    """Take the line-up of a preset."""

    op: Literal["preset"]
    name: str

    def apply(self, text: str, offer: Offer) -> list[str]:
        for preset in presets():
            if preset.name == self.name and _can_run(preset, offer):
                return list(preset.lines[: offer.most_columns])
        raise DerbyError(f"There is no preset {self.name!r:.60}.")


class _Add(Untrusted):
    """Add a column of a strategy with its usual settings. A server's column uses an offered server
    if there is one.
    """

    op: Literal["add"]
    strategy: str

    def apply(self, text: str, offer: Offer) -> list[str]:
        known = strategies()
        if self.strategy not in known:
            raise DerbyError(
                f"There is no column {self.strategy!r:.60}; choose from {', '.join(known)}."
            )
        served = self.strategy == SERVER.name and offer.servers
        added = f"@{offer.servers[0]}" if served else self.strategy
        return [*(line for _, line in lines_of(text, offer, least=0)), added]


class _Duplicate(Untrusted):
    op: Literal["duplicate"]
    index: Index

    def apply(self, text: str, offer: Offer) -> list[str]:
        lines = _lines(text, offer, self.index)
        return [*lines[: self.index + 1], *lines[self.index :]]


class _Remove(Untrusted):
    op: Literal["remove"]
    index: Index

    def apply(self, text: str, offer: Offer) -> list[str]:
        lines = _lines(text, offer, self.index)
        return [*lines[: self.index], *lines[self.index + 1 :]]


class _Move(Untrusted):
    op: Literal["move"]
    index: Index
    to: Index

    def apply(self, text: str, offer: Offer) -> list[str]:
        lines = _lines(text, offer, self.index, self.to)
        lines.insert(self.to, lines.pop(self.index))
        return lines


class _Set(Untrusted):
    """Change one setting of a column, or where it runs."""

    op: Literal["set"]
    index: Index
    setting: str
    value: Annotated[str, Len(0, 200)]

    def apply(self, text: str, offer: Offer) -> list[str]:
        lines = _lines(text, offer, self.index)
        lines[self.index] = self._changed(lines[self.index], offer)
        return lines

    def _changed(self, line: str, offer: Offer) -> str:
        """The line with the setting changed. Raises DerbyError for what would read otherwise."""
        written = self.value.strip()
        if set(",\n\r") & set(written):
            raise DerbyError(
                f"{written!r:.60} contains a comma or a line break, which no setting may contain."
            )
        column = read_column(line, offer)
        if self.setting in PLACE and column.strategy.loads:
            there = offer.around(column.strategy.library)
            changed = column.on(_moved(column.model, self.setting, written, there))
        else:
            own = self.setting == "grammar" and written == OWN
            changed = column.with_settings({self.setting: ANY_OWN if own else written})
        if read_column(str(changed), offer) != changed:
            raise DerbyError(f"{written!r:.60} cannot be written in a column's text.")
        return str(changed)


Action = Annotated[_Choose | _Add | _Duplicate | _Remove | _Move | _Set, Field(discriminator="op")]


def _lines(text: str, offer: Offer, *indices: int) -> list[str]:
    """The lines of a right text: which columns are meant is only known of one. Raises DerbyError
    for a wrong one, and for columns that it does not have.
    """
    lines = [line for _, line in Lineup.read(text, offer).lines]
    for index in indices:
        if index >= len(lines):
            raise DerbyError(
                f"Column {index} does not exist; the line-up has columns 0 to {len(lines) - 1}."
            )
    return lines


def _moved(model: OwnModel, what: str, name: str, offer: Offer) -> OwnModel:
    """Another model, engine, precision or device for a column; "" is the race's. What the engine
    does not have is left to the race, too.
    """
    moved = replace(model, **{"name" if what == "model" else what: name})
    for other in ("precision", "device"):
        if what == "engine" and getattr(moved, other) not in offer.options(other, moved.engine):
            moved = replace(moved, **{other: ""})
    offer.require_place(moved.engine, moved.precision, moved.device)
    return moved


def apply(text: str, action: Any, offer: Offer) -> str:
    """The text after an action. Raises DerbyError for one that cannot be, and for a wrong text."""
    lines = read_as(Action, action, "The action").apply(text, offer)
    if len(lines) > offer.most_columns:
        raise DerbyError(f"There are {offer.most_columns} columns already, the most of a race.")
    return "\n".join(lines)


def answer(value: Any, offer: Offer) -> dict[str, Any]:
    """The editor's state after what it sent: {"text", "action" or None, "serial"}.

    `serial` is given back. A refused action leaves the text as it is: `refused`, and a sentence.
    """
    try:
        sent = read_as(_Sent, value)
    except UntrustedError:
        sent = _Sent()
    # Half of a surrogate pair could not be sent back.
    text, refusal = sent.text.encode(errors="replace").decode(), ""
    if sent.action is not None:
        try:
            text = apply(text, sent.action, offer)
        except DerbyError as error:
            refusal = str(error)
    state = editor_state(text, offer)
    said = offer.public(refusal or state["problem"])
    return state | {"serial": sent.serial, "refused": bool(refusal), "problem": said}


def editor_state(text: str, offer: Offer) -> dict[str, Any]:
    """What the editor shows: the columns, or None and one sentence where the text is wrong."""
    try:
        columns = [_shown(column, offer) for column in Lineup.read(text, offer).columns]
    except DerbyError as error:
        return {"text": text, "problem": str(error), "columns": None}
    return {"text": text, "problem": "", "columns": columns}


def _shown(column: Column, offer: Offer) -> dict[str, Any]:
    """A column as the editor draws it: all values in the command line's words."""
    fields, model, settings = settings_of(column.strategy), column.model, column.settings()
    there = offer.around(column.strategy.library)
    values = {name: fields[name].text(value) for name, value in settings.items()}
    place = {"model": model.name, "engine": model.engine}
    place |= {"precision": model.precision, "device": model.device}
    return {
        "strategy": column.strategy.name,
        "line": str(column),
        "gist": column.gist,
        "values": place | values,
        "options": {
            name: _place_options(name, model.engine, there) for name in ("precision", "device")
        },
    }


def catalogue(offer: Offer) -> dict[str, Any]:
    """What the editor needs to know once: the strategies with their settings, and the presets."""
    reaches_servers = offer.servers or offer.limits.server_addresses
    return {
        "most": offer.most_columns,
        "strategies": {
            name: {
                "title": strategy.title,
                "description": strategy.description,
                "fields": [_field(setting, offer) for setting in settings_of(strategy).values()],
                "place": _place(strategy, offer) if strategy.loads else [],
            }
            for name, strategy in strategies().items()
            if strategy.loads or reaches_servers
        },
        "presets": [
            [preset.name, preset.title, preset.about]
            for preset in presets()
            if _can_run(preset, offer)
        ],
    }


def _can_run(preset: Preset, offer: Offer) -> bool:
    """Whether the preset can be raced here, or its first columns where fewer are allowed."""
    lines = preset.lines[: offer.most_columns]
    return len(lines) > 1 and editor_state("\n".join(lines), offer)["columns"] is not None


def _field(setting: Setting, offer: Offer) -> dict[str, Any]:
    """A setting as the editor draws it."""
    about = {"name": setting.name, "label": setting.label, "help": setting.help}
    return about | _control(setting, offer)


def _control(setting: Setting, offer: Offer) -> dict[str, Any]:
    """What a setting is changed with. `other`: what may be typed where no option is meant."""
    options: list[tuple[str, str]] = []
    other: Mapping[str, str] = {}
    match setting:
        case WholeNumber():
            return {"kind": "number", "low": setting.low, "high": setting.high}
        case Flag():
            return {"kind": "flag"}
        case Choice():
            options = [*setting.options]
        case ModelChoice():  # the first model is the target itself
            options, other = [*setting.options, *_models(offer)[1:]], _other(offer)
        case ServerChoice():
            options = [(name, name) for name in offer.servers]
            other = {"other": "Address"} if offer.limits.server_addresses else {}
        case GrammarChoice():
            ready = [(name, name) for name in shipped()]
            options = [(NO_GRAMMAR, "none"), *ready, (OWN, "my own")]
        case _:
            return {"kind": "text"}
    return {"kind": "choice", "options": options, **other}


def _place(strategy: Strategy, offer: Offer) -> list[dict[str, Any]]:
    """The model of a column's own, as the editor draws it; a library's has no engine to choose."""
    there = offer.around(strategy.library)
    options = {
        "model": [AS_THE_RACE, *_models(offer)],
        "engine": [AS_THE_RACE, *((r.engine, r.title) for r in offer.runtimes)],
        "precision": _place_options("precision", "", there),
        "device": _place_options("device", "", there),
    }
    return [
        {"name": name, "label": label, "help": text, "kind": "choice", "options": options[name]}
        | (_other(offer) if name == "model" else {})
        for name, (label, text) in PLACE.items()
        if name != "engine" or strategy.ours
    ]


def _place_options(what: str, engine: str, offer: Offer) -> list[tuple[str, str]]:
    return [AS_THE_RACE, *((name, name) for name in offer.options(what, engine))]


def _other(offer: Offer) -> dict[str, str]:
    return {"other": "Hub id"} if offer.hub else {}


def _models(offer: Offer) -> list[tuple[str, str]]:
    return list(zip(offer.names, map(model_title, offer.labels.values()), strict=True))
