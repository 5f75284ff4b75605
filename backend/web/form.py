"""From what a visitor's browser sent, of which nothing is trusted, to a race.

Fields are named as on the page: "prompt", "lineup", "temperature", ... The line-up is what its
editor sends (lineup.py). The race's own model goes by its key, or by `HUB` and an id in
"model.hub". A grammar of the visitor's own is the one in "grammar.kind" and "grammar.text".
"""

import math
from collections.abc import Mapping
from typing import Any, get_args

from backend.errors import DerbyError, check_range
from backend.grammar.sources import GrammarSource, Kind
from backend.models.files import HUB_ID
from backend.racing.race import Race
from backend.strategies.column import Column, settings_of
from backend.strategies.settings import ModelChoice
from backend.types import MAX_NEW_TOKENS, ModelSpec, Request, Sampling
from backend.web.lineup import MAX_TEXT, asks_for_own, read_lineup, text_of
from backend.web.offer import HUB, Offer

KINDS = get_args(Kind)
MAX_STOPS = 16
MAX_STOP = 200

Values = Mapping[str, Any]


def read_race(values: Values, offer: Offer) -> Race:
    """The race that the form asks for. Raises DerbyError, in one sentence, for the first flaw."""
    target = _target(values, offer)
    lineup = _text("The line-up", text_of(values.get("lineup")), MAX_TEXT)
    own = (
        read_grammar(values.get("grammar.kind"), values.get("grammar.text"))
        if asks_for_own(lineup)
        else None
    )
    return Race(
        Request(
            prompt=_text("The prompt", values.get("prompt"), offer.limits.prompt_characters),
            max_new_tokens=read_tokens(values.get("max_new_tokens"), offer),
            sampling=Sampling(
                temperature=read_number("temperature", values.get("temperature")),
                top_k=read_whole("top-k", values.get("top_k")),
                top_p=read_number("top-p", values.get("top_p")),
                seed=read_whole("seed", values.get("seed")),
            ),
            chat=_flag("chat template", values.get("chat")),
            stop=_stops(values.get("stop")),
            context=read_whole("context limit", values.get("context")),
            shift=_flag("context shift", values.get("shift")),
            heal=_flag("token healing", values.get("heal")),
            top=read_whole("most probable tokens", values.get("top")),
        ),
        read_lineup(lineup, offer, target, own),
        target,
    )


def wants_measuring(values: Values) -> bool:
    """Whether pass costs are to be measured anew before the race. Raises DerbyError if unclear."""
    return _flag("measuring pass costs again", values.get("measure"))


def read_tokens(value: Any, offer: Offer) -> int:
    """How many tokens to write. Raises DerbyError for what is not from 1 to the page's limit."""
    tokens = read_whole("max new tokens", value)
    check_range("max new tokens", tokens, 1, min(offer.limits.tokens, MAX_NEW_TOKENS))
    return tokens


def require_allowed(request: Request, column: Column, target: ModelSpec, offer: Offer) -> None:
    """Raise DerbyError unless visitors of this page may go on with a saved column."""
    runtime = offer.runtime(target.engine)
    names = {target.name, *_drafts(column)}
    if (
        runtime is None
        or not all(map(offer.has, names))
        or target.precision not in runtime.precisions
        or target.device not in runtime.devices
    ):
        raise DerbyError(
            "The snapshot's model or engine is not offered on this page: load it on the command "
            "line, or on a page that offers them."
        )
    _text("The snapshot's prompt", request.prompt, offer.limits.prompt_characters)


def _drafts(column: Column) -> set[str]:
    """The models that a column's settings name, beside the copies of its own."""
    values = column.settings()
    return {
        values[name]
        for name, field in settings_of(column.strategy).items()
        if isinstance(field, ModelChoice) and values[name] not in dict(field.options)
    }


def read_grammar(kind: Any, text: Any) -> GrammarSource:
    """A visitor's own grammar. Raises DerbyError if it is none."""
    if kind not in KINDS:
        raise DerbyError(f"The grammar kind is {kind!r:.60}; it must be one of {_list(KINDS)}.")
    return GrammarSource(kind, text if isinstance(text, str) else "", "my own")


def _target(values: Values, offer: Offer) -> ModelSpec:
    engine = values.get("engine")
    runtime = offer.runtime(engine) if isinstance(engine, str) else None
    if runtime is None:
        offered = _list(r.engine for r in offer.runtimes)
        raise DerbyError(f"There is no engine {engine!r:.60} here; choose from {offered}.")
    name = _model("model", values.get("model"), values.get("model.hub"), offer)
    precision = _one_of("precision", values.get("precision"), runtime.title, runtime.precisions)
    device = _one_of("device", values.get("device"), runtime.title, runtime.devices)
    return ModelSpec(name, runtime.engine, precision, device)


def _one_of(what: str, value: Any, title: str, offered: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in offered:
        raise DerbyError(f"{title} has no {what} {value!r:.60} here; choose from {_list(offered)}.")
    return value


def _model(what: str, key: Any, hub: Any, offer: Offer) -> str:
    """A model's name for the engines: one of the operator's by its key, or a Hub id."""
    if key == HUB and offer.hub:
        hub = hub.strip() if isinstance(hub, str) else ""
        if len(hub) > 200 or not HUB_ID.fullmatch(hub):
            raise DerbyError(
                f"The {what}'s Hub id is {hub!r:.60}; it must look like owner/model, in letters, "
                "digits, '.', '_' and '-'."
            )
        return hub
    if not isinstance(key, str) or key not in offer.labels:
        raise DerbyError(f"There is no {what} {key!r:.60} on this page; choose one from the list.")
    return offer.models[int(key)]


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


def read_number(name: str, value: Any) -> float:
    """A number that a browser or a program sent. Raises DerbyError if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        shown = "empty" if value is None else f"{value!r:.60}"
        raise DerbyError(f"{name} is {shown}; it must be a number.")
    # In this order: isfinite cannot take a whole number that no float holds.
    if not -(2**63) < value < 2**63 or not math.isfinite(value):
        raise DerbyError(f"{name} is too large a number.")
    return value


def read_whole(name: str, value: Any) -> int:
    """A whole number that a browser or a program sent. Raises DerbyError if it is none."""
    number = read_number(name, value)
    if number != int(number):
        raise DerbyError(f"{name} is {number}; it must be a whole number.")
    return int(number)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise DerbyError(f"{name} is {value!r:.60}; it must be on or off.")
    return value


def _list(names: Any) -> str:
    return ", ".join(names)


#: Values that only make sense together; every other one stands alone.
_TOGETHER = (
    ("engine", "precision", "device", "model", "model.hub"),
    ("lineup", "grammar.kind", "grammar.text"),
)


def usable(values: Values, usual: Values, offer: Offer) -> Values:
    """The form with those of `values` that a race could be run with here, else the `usual` ones:
    for forms that a browser kept, or that came in an address.
    """
    grouped = {name for group in _TOGETHER for name in group}
    form = dict(usual)
    for group in (*_TOGETHER, *((name,) for name in usual if name not in grouped)):
        tried = form | {name: values[name] for name in group if name in values and name in usual}
        # A prompt or a line-up that is not there yet is nobody's mistake.
        checked = tried | ({} if tried["prompt"] else {"prompt": "-"})
        try:
            read_race(checked, offer)
            wants_measuring(checked)
        except DerbyError:
            continue
        form = tried
    return form
