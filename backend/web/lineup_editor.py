"""The editor of a line-up: what the page shows of its text, and what is done to it there.

The text is the truth (lineup.py). The editor draws the state that `answer` makes of it and sends
back actions, each of which becomes a change of the text:

    {"op": "add", "strategy": name}             {"op": "duplicate", "index": i}
    {"op": "move", "index": i, "to": j}         {"op": "remove", "index": i}
    {"op": "set", "index": i, "setting": name, "value": value}
    {"op": "preset", "name": name}
"""

from dataclasses import dataclass, replace
from typing import Any

from backend.errors import DerbyError
from backend.grammar.sources import shipped
from backend.models.files import model_title
from backend.strategies.column import Column, settings_of
from backend.strategies.registry import DEFAULT_COLUMNS, strategies
from backend.strategies.server import SERVER
from backend.strategies.settings import (
    NO_GRAMMAR,
    OWN,
    CacheChoice,
    Choice,
    Flag,
    GrammarChoice,
    ModelChoice,
    ServerChoice,
    Setting,
    WholeNumber,
)
from backend.web.lineup import (
    ANY_OWN,
    AS_THE_RACE,
    column_of,
    model_names,
    most_columns,
    numbered,
    parse_lineup,
    place_options,
    require_place,
)
from backend.web.offer import Offer

MAX_VALUE = 200

#: What a column may name of its own, beside its settings: the label and the line of help.
PLACE = {
    "model": ("Model", "What it runs; drafts are set above."),
    "engine": ("Engine", "What computes."),
    "precision": ("Precision", "Of the weights."),
    "device": ("Device", "Where it computes."),
}


@dataclass(frozen=True, slots=True)
class Preset:
    """A line-up that answers a question, and a line on what it shows."""

    name: str
    title: str
    about: str
    lines: tuple[str, ...]


PRESETS = (
    Preset(
        "strategies",
        "The five strategies",
        "One of each family; the grammar's column answers as a person in JSON, whatever is asked.",
        DEFAULT_COLUMNS,
    ),
    Preset(
        "quantisation",
        "What does quantisation buy?",
        "Fewer bits make passes cheaper; the exact ones keep the text of fp32.",
        (
            "kv",
            "kv@openvino/int4-exact",
            "speculative@openvino/int4-exact",
            "kv@openvino/int8",
            "kv@openvino/int4",
            "speculative@openvino/int4",
        ),
    ),
    Preset(
        "draft",
        "Which draft?",
        "What is a draft worth that is trained, copied at fewer bits, or looked up in the text?",
        (
            "kv",
            "lookup",
            "speculative",
            "speculative:draft=trained",
            "speculative:draft=int8",
            "speculative:draft=int4",
        ),
    ),
    Preset(
        "k",
        "Which K?",
        "Longer drafts give more tokens a pass, and make it dearer.",
        ("kv", "speculative", *(f"speculative:k={k}" for k in (2, 4, 8, 16))),
    ),
    Preset(
        "lookahead",
        "Lookahead settings",
        "How wide a window and how long n-grams pay here, or whether none does.",
        (
            "kv",
            "lookahead",
            "lookahead:auto=decline",
            "lookahead:auto=largest",
            "lookahead:window=5,level=3,guesses=5",
            "lookahead:window=7,level=4,guesses=7",
        ),
    ),
    Preset(
        "grammar",
        "The same with a grammar",
        "All but the first write a person in JSON, the same one but for their ways of guessing.",
        (
            "kv",
            *(f"{name}:grammar=person" for name in ("kv", "speculative", "lookahead", "lookup")),
        ),
    ),
)


def catalogue(offer: Offer) -> dict[str, Any]:
    """What the editor needs to know once: the strategies with their settings, and the presets."""
    return {
        "most": most_columns(offer),
        "strategies": {
            name: {
                "title": strategy.title,
                "description": strategy.description,
                "fields": [_field(setting, offer) for setting in settings_of(strategy).values()],
                "place": _place(offer) if strategy.lane is None else [],
            }
            for name, strategy in strategies().items()
            if strategy.lane is not SERVER.lane or _reaches_servers(offer)
        },
        "presets": [
            [preset.name, preset.title, preset.about]
            for preset in PRESETS
            if _can_run(preset, offer)
        ],
    }


def answer(value: Any, offer: Offer) -> dict[str, Any]:
    """The editor's state after what it sent: {"text", "action" or None, "serial"}.

    `serial` is given back. A refused action leaves the text as it is: `refused`, and a sentence.
    """
    sent = value if isinstance(value, dict) else {}
    serial = sent.get("serial")
    serial = serial if isinstance(serial, int) and 0 <= serial < 2**53 else 0
    text = sent.get("text")
    # Half of a surrogate pair could not be sent back.
    text = text.encode(errors="replace").decode() if isinstance(text, str) else ""
    action, refusal = sent.get("action"), ""
    if action is not None:
        try:
            text = apply(text, action, offer)
        except DerbyError as error:
            refusal = str(error)
    state = editor_state(text, offer)
    told = offer.public(refusal or state["problem"])
    return state | {"serial": serial, "refused": bool(refusal), "problem": told}


def editor_state(text: str, offer: Offer) -> dict[str, Any]:
    """What the editor shows: the columns, or None and one sentence where the text is wrong."""
    try:
        columns = [_shown(column, offer) for column in parse_lineup(text, offer)]
    except DerbyError as error:
        return {"text": text, "problem": str(error), "columns": None}
    return {"text": text, "problem": "", "columns": columns}


def apply(text: str, action: Any, offer: Offer) -> str:
    """The text after an action. Raises DerbyError for one that cannot be, and for a wrong text."""
    if not isinstance(action, dict):
        raise DerbyError(f"The action {action!r:.60} is none of the editor's.")
    match action.get("op"):
        case "preset":
            return "\n".join(_preset(action.get("name"), offer))
        case "add":
            lines = [line for _, line in numbered(text, offer, least=0)]
            lines.append(_added(action.get("strategy"), offer))
        case "duplicate" | "remove" | "move" | "set" as op:
            parse_lineup(text, offer)  # which columns are meant is only known of a right text
            lines = [line for _, line in numbered(text, offer)]
            index = _index("index", action.get("index"), len(lines))
            if op == "duplicate":
                lines.insert(index + 1, lines[index])
            elif op == "remove":
                del lines[index]
            elif op == "move":
                lines.insert(_index("to", action.get("to"), len(lines)), lines.pop(index))
            else:
                lines[index] = _changed(
                    lines[index], action.get("setting"), action.get("value"), offer
                )
        case op:
            raise DerbyError(f"The action {op!r:.60} is none of the editor's.")
    if len(lines) > (most := most_columns(offer)):
        raise DerbyError(f"There are {most} columns already, the most of a race.")
    return "\n".join(lines)


def _changed(line: str, setting: Any, value: Any, offer: Offer) -> str:
    """The line with one setting changed. Raises DerbyError for what would read otherwise."""
    if not isinstance(value, str) or len(written := value.strip()) > MAX_VALUE:
        raise DerbyError(f"A setting is a text of at most {MAX_VALUE} characters.")
    if set(",\n\r") & set(written):
        raise DerbyError(f"{written!r:.60} has a comma or a line end, which no setting may have.")
    if not isinstance(setting, str):
        raise DerbyError(f"There is no setting {setting!r:.60}.")
    column = column_of(line, offer, ANY_OWN, resolve=False)
    if setting in PLACE and column.strategy.lane is None:
        changed = _moved(column, setting, written, offer)
    else:
        own = setting == "grammar" and written == OWN
        changed = column.with_settings({setting: ANY_OWN if own else written})
    text = str(changed)
    if column_of(text, offer, ANY_OWN, resolve=False) != changed:
        raise DerbyError(f"{written!r:.60} cannot be written in a column's text.")
    return text


def _moved(column: Column, what: str, name: str, offer: Offer) -> Column:
    """The column with another model, engine, precision or device; "" is the race's. What the
    engine does not have is left to the race, too.
    """
    model = replace(column.model, **{"name" if what == "model" else what: name})
    for other in ("precision", "device"):
        offered = [option for option, _ in place_options(other, model.engine, offer)]
        if what == "engine" and getattr(model, other) not in offered:
            model = replace(model, **{other: ""})
    require_place(model, offer)
    return column.on(model)


def _added(name: Any, offer: Offer) -> str:
    """A strategy's column as it stands; a server's at one that is offered, if any is."""
    if not isinstance(name, str) or name not in strategies():
        raise DerbyError(f"There is no column {name!r:.60}; choose from {', '.join(strategies())}.")
    return f"@{offer.servers[0]}" if name == SERVER.name and offer.servers else name


def _reaches_servers(offer: Offer) -> bool:
    return bool(offer.servers or offer.limits.server_addresses)


def _index(what: str, value: Any, count: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        raise DerbyError(f"{what} is {value!r:.60}; the line-up has columns 0 to {count - 1}.")
    return value


def _preset(name: Any, offer: Offer) -> tuple[str, ...]:
    for preset in PRESETS:
        if preset.name == name and _can_run(preset, offer):
            return preset.lines
    raise DerbyError(f"There is no preset {name!r:.60}.")


def _can_run(preset: Preset, offer: Offer) -> bool:
    return editor_state("\n".join(preset.lines), offer)["columns"] is not None


def _shown(column: Column, offer: Offer) -> dict[str, Any]:
    """A column as the editor draws it: all values in the command line's words."""
    fields = settings_of(column.strategy)
    values = {name: fields[name].text(value) for name, value in column.settings().items()}
    model = column.model
    place = {
        "model": model.name,
        "engine": model.engine,
        "precision": model.precision,
        "device": model.device,
    }
    return {
        "strategy": column.strategy.name,
        "line": str(column),
        "values": place | values,
        "options": {
            name: place_options(name, model.engine, offer) for name in ("precision", "device")
        },
    }


def _field(setting: Setting, offer: Offer) -> dict[str, Any]:
    """A setting as the editor draws it."""
    about = {"name": setting.name, "label": setting.label, "help": setting.help}
    return about | _control(setting, offer)


def _control(setting: Setting, offer: Offer) -> dict[str, Any]:
    """What a setting is changed with. `other`: what may be typed where no option is meant."""
    control: dict[str, Any] = {"kind": "text"}
    match setting:
        case WholeNumber():
            control = {"kind": "number", "low": setting.low, "high": setting.high}
        case Flag():
            control = {"kind": "flag"}
        case Choice():
            control = {"kind": "choice", "options": setting.options}
        case CacheChoice():
            control = {"kind": "choice", "options": setting.options, "other": "Snapshot id"}
        case ModelChoice():
            models = _models(offer)[1:]  # the first is the target itself
            control = {"kind": "choice", "options": [*setting.options, *models]} | _other(offer)
        case ServerChoice():
            named = [(name, name) for name in offer.servers]
            control = {"kind": "choice", "options": named}
            if offer.limits.server_addresses:
                control["other"] = "Address"
        case GrammarChoice():
            ready = [(name, name) for name in shipped()]
            control = {
                "kind": "choice",
                "options": [(NO_GRAMMAR, "none"), *ready, (OWN, "my own")],
            }
    return control


def _place(offer: Offer) -> list[dict[str, Any]]:
    """The model of a column's own, as the editor draws it."""
    options = {
        "model": [AS_THE_RACE, *_models(offer)],
        "engine": [AS_THE_RACE, *((r.engine, r.title) for r in offer.runtimes)],
        "precision": place_options("precision", "", offer),
        "device": place_options("device", "", offer),
    }
    return [
        {"name": name, "label": label, "help": text, "kind": "choice", "options": options[name]}
        | (_other(offer) if name == "model" else {})
        for name, (label, text) in PLACE.items()
    ]


def _other(offer: Offer) -> dict[str, str]:
    return {"other": "Hub id"} if offer.hub else {}


def _models(offer: Offer) -> list[tuple[str, str]]:
    return list(zip(model_names(offer), map(model_title, offer.labels.values()), strict=True))
