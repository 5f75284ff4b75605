"""From what a visitor's browser sent, of which nothing is trusted, to a race.

Fields are named as on the page: "prompt", "columns", ..., and "STRATEGY.SETTING" for a column's
settings. Only the settings of chosen columns are read. A column may be set to a model by key, or by
`HUB` and an id in "...hub"; to a grammar by name, or by `OWN`: then it is the one in "grammar.kind"
and "grammar.text".
"""

import math
from collections.abc import Mapping
from typing import Any, get_args

from backend.errors import DerbyError, check_range
from backend.grammar.sources import GrammarSource, Kind
from backend.models.files import HUB_ID
from backend.racing.race import Race
from backend.strategies.registry import OWN, STRATEGIES, Strategy
from backend.strategies.settings import HYBRID, PRECISIONS, TRAINED
from backend.types import MAX_NEW_TOKENS, ModelSpec, Request, Sampling
from backend.web.offer import HUB, Offer

KINDS = get_args(Kind)
MAX_PROMPT = 65_536
MAX_STOPS = 16
MAX_STOP = 200

Values = Mapping[str, Any]


def read_race(values: Values, menu: Offer) -> Race:
    """The race that the form asks for. Raises DerbyError, in one sentence, for the first flaw."""
    return Race(
        Request(
            prompt=_text("The prompt", values.get("prompt"), MAX_PROMPT),
            max_new_tokens=_whole("max new tokens", values.get("max_new_tokens")),
            sampling=Sampling(
                temperature=_number("temperature", values.get("temperature")),
                top_k=_whole("top-k", values.get("top_k")),
                top_p=_number("top-p", values.get("top_p")),
                seed=_whole("seed", values.get("seed")),
            ),
            chat=_flag("chat template", values.get("chat")),
            stop=_stops(values.get("stop")),
            context=_whole("context limit", values.get("context")),
            shift=_flag("context shift", values.get("shift")),
            heal=_flag("token healing", values.get("heal")),
        ),
        tuple(_column(name, values, menu) for name in _names(values.get("columns"))),
        _target(values, menu),
        measure=_flag("measuring pass costs again", values.get("measure")),
    )


def read_more(value: Any) -> int:
    """How many tokens to go on for. Raises DerbyError for anything but 1 to MAX_NEW_TOKENS."""
    tokens = _whole("max new tokens", value)
    check_range("max new tokens", tokens, 1, MAX_NEW_TOKENS)
    return tokens


def require_offered(target: ModelSpec, menu: Offer) -> None:
    """Raise DerbyError unless visitors of this page may run the model."""
    runtime = menu.runtime(target.engine)
    offered = target.name in menu.models or HUB_ID.fullmatch(target.name)
    if runtime is None or not offered or target.device not in runtime.devices:
        raise DerbyError(
            "The snapshot's model or engine is not offered on this page: load it on the command "
            "line, or on a page that offers them."
        )


def _names(value: Any) -> list[str]:
    if not isinstance(value, list) or not value:
        raise DerbyError("No column is chosen: pick at least one strategy.")
    for name in value:
        if not isinstance(name, str) or name not in STRATEGIES:
            raise DerbyError(f"There is no column {name!r:.60}; choose from {_list(STRATEGIES)}.")
    return value


def _column(name: str, values: Values, menu: Offer) -> Strategy:
    strategy = STRATEGIES[name]
    settings: dict[str, Any] = {}
    for setting, default in strategy.settings().items():
        field = f"{name}.{setting}"
        value = values.get(field, default)
        match default:
            case _ if setting == "cache":
                settings[setting] = value if isinstance(value, str) else repr(value)[:60]
            case bool():
                settings[setting] = _flag(f"{strategy.title}: {setting}", value)
            case int():
                settings[setting] = _whole(f"{strategy.title}: {setting}", value)
            case None | GrammarSource():
                settings[setting] = _grammar(value, values)
            case _:
                settings[setting] = _draft(field, value, values, menu)
    return strategy.with_settings(settings)


def _grammar(value: Any, values: Values) -> Any:
    if value == OWN:
        return read_grammar(values.get("grammar.kind"), values.get("grammar.text"))
    return value if value is None or isinstance(value, str | GrammarSource) else repr(value)[:60]


def read_grammar(kind: Any, text: Any) -> GrammarSource:
    """A visitor's own grammar. Raises DerbyError if it is none."""
    if kind not in KINDS:
        raise DerbyError(f"The grammar kind is {kind!r:.60}; it must be one of {_list(KINDS)}.")
    return GrammarSource(kind, text if isinstance(text, str) else "", "my own")


def _draft(field: str, value: Any, values: Values, menu: Offer) -> str:
    if value in (HYBRID, TRAINED, *PRECISIONS):
        return value
    return _model("draft", value, values.get(f"{field}.hub"), menu)


def _target(values: Values, menu: Offer) -> ModelSpec:
    engine = values.get("engine")
    runtime = menu.runtime(engine) if isinstance(engine, str) else None
    if runtime is None:
        offered = _list(r.engine for r in menu.runtimes)
        raise DerbyError(f"There is no engine {engine!r:.60} here; choose from {offered}.")
    name = _model("model", values.get("model"), values.get("model.hub"), menu)
    precision = _one_of("precision", values.get("precision"), runtime.title, runtime.precisions)
    device = _one_of("device", values.get("device"), runtime.title, runtime.devices)
    return ModelSpec(name, runtime.engine, precision, device)


def _one_of(what: str, value: Any, title: str, offered: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in offered:
        raise DerbyError(f"{title} has no {what} {value!r:.60} here; choose from {_list(offered)}.")
    return value


def _model(what: str, key: Any, hub: Any, menu: Offer) -> str:
    """A model's name for the engines: one of the operator's by its key, or a Hub id."""
    if key == HUB:
        hub = hub.strip() if isinstance(hub, str) else ""
        if len(hub) > 200 or not HUB_ID.fullmatch(hub):
            raise DerbyError(
                f"The {what}'s Hub id is {hub!r:.60}; it must look like owner/model, in letters, "
                "digits, '.', '_' and '-'."
            )
        return hub
    if not isinstance(key, str) or key not in menu.labels:
        raise DerbyError(f"There is no {what} {key!r:.60} on this page; choose one from the list.")
    return menu.models[int(key)]


def _stops(value: Any) -> tuple[str, ...]:
    """One stop string a line; a typed backslash-n stands for a line end, backslash-t for a tab."""
    text = _text("The stop strings", value, MAX_STOPS * (MAX_STOP + 1))
    lines = tuple(line for line in text.splitlines() if line)
    if len(lines) > MAX_STOPS or any(len(line) > MAX_STOP for line in lines):
        raise DerbyError(
            f"There are {len(lines)} stop strings of up to {max(map(len, lines))} characters; "
            f"{MAX_STOPS} of up to {MAX_STOP} are allowed."
        )
    return tuple(line.replace("\\n", "\n").replace("\\t", "\t") for line in lines)


def _text(name: str, value: Any, limit: int) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DerbyError(f"{name} must be text.")
    if len(value) > limit:
        raise DerbyError(f"{name} of {len(value):,} characters is too long: {limit:,} are allowed.")
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise DerbyError(f"{name} contains half of a surrogate pair: remove it.")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        shown = "empty" if value is None else f"{value!r:.60}"
        raise DerbyError(f"{name} is {shown}; it must be a number.")
    if not math.isfinite(value) or abs(value) >= 2**63:
        raise DerbyError(f"{name} is too large a number.")
    return value


def _whole(name: str, value: Any) -> int:
    number = _number(name, value)
    if number != int(number):
        raise DerbyError(f"{name} is {number}; it must be a whole number.")
    return int(number)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise DerbyError(f"{name} is {value!r:.60}; it must be on or off.")
    return value


def _list(names: Any) -> str:
    return ", ".join(names)
