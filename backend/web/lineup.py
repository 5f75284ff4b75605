"""The line-up of a race as text: one column a line, in the command line's words.

Nothing that comes from a browser is trusted. Models go by the labels or keys of the offer or by a
Hub id; no path passes.
"""

import re
from collections.abc import Iterable
from typing import Any

from backend.errors import DerbyError
from backend.grammar.sources import GrammarSource
from backend.models.files import HUB_ID
from backend.racing.race import MAX_COLUMNS
from backend.remote.server import is_address
from backend.strategies.column import Column, OwnModel, parse_column, settings_of
from backend.strategies.settings import OWN, ServerChoice
from backend.types import ModelSpec
from backend.web.offer import Offer

MAX_TEXT = 4_000

#: What a column that names no engine, precision, device or model of its own runs on.
AS_THE_RACE = ("", "as the race")

#: Stands for the visitor's grammar while only its place in the line-up matters.
ANY_OWN = GrammarSource("regex", "own", "my own")
_SAYS_OWN = re.compile(rf"[:,]\s*grammar\s*=\s*{OWN}\s*(,|$)")

#: A model's label that can stand in a column's text; others go by their keys.
_PLAIN_LABEL = re.compile(r"[\w.-]+(/[\w.-]+)?")


def text_of(value: Any) -> Any:
    """The text in what the editor sends, which may be the text alone."""
    return value.get("text") if isinstance(value, dict) else value


def most_columns(offer: Offer) -> int:
    return min(offer.limits.columns, MAX_COLUMNS)


def read_lineup(
    text: str, offer: Offer, target: ModelSpec, own: GrammarSource | None
) -> tuple[Column, ...]:
    """The columns of a race on `target`, models by their names for the engines.

    `own` is the visitor's grammar, None if it is wanted nowhere. Raises DerbyError, with the
    line's number, for the first flaw, and for more models than a race may have.
    """
    columns = []
    for number, line in numbered(text, offer):
        try:
            column = column_of(line, offer, own, resolve=True)
            if column.strategy.lane is None:
                require_offered(column.target(target), offer)
            require_servers(column, offer)
        except DerbyError as error:
            raise DerbyError(f"Line {number} of the line-up: {error}") from error
        columns.append(column)
    _require_few_models(columns, target, offer)
    return tuple(columns)


def _require_few_models(columns: Iterable[Column], target: ModelSpec, offer: Offer) -> None:
    specs = {column.target(target) for column in columns if column.strategy.lane is None}
    if len(specs) > offer.limits.models:
        raise DerbyError(
            f"The columns run on {len(specs)} models, each of another name, engine, precision or "
            f"device; a race may have {offer.limits.models} here: remove some."
        )


def asks_for_own(text: str) -> bool:
    """True if a column of the line-up has the visitor's own grammar."""
    return any(map(_SAYS_OWN.search, text.split("\n")))


def parse_lineup(text: str, offer: Offer) -> tuple[Column, ...]:
    """The columns of the text, models as they are written there. Raises DerbyError."""
    columns = []
    for number, line in numbered(text, offer):
        try:
            columns.append(column_of(line, offer, ANY_OWN, resolve=False))
        except DerbyError as error:
            raise DerbyError(f"Line {number}: {error}") from error
    return tuple(columns)


def numbered(text: str, offer: Offer, least: int = 1) -> list[tuple[int, str]]:
    """The lines that are not blank, with their numbers. Raises DerbyError for too many or few,
    before anything is made of them.
    """
    most = most_columns(offer)
    if len(text) > MAX_TEXT:
        raise DerbyError(
            f"The line-up of {len(text):,} characters is too long: {MAX_TEXT:,} are allowed."
        )
    pairs = enumerate(map(str.strip, text.split("\n")), start=1)
    lines = [(number, line) for number, line in pairs if line]
    if not least <= len(lines) <= most:
        raise DerbyError(
            f"There are {len(lines)} columns; a race has 1 to {most}: remove some."
            if lines
            else "No column is chosen: add at least one."
        )
    return lines


def column_of(line: str, offer: Offer, own: GrammarSource | None, *, resolve: bool) -> Column:
    """The column of a line, models by the engines' names if `resolve`, else as written."""

    def name_model(written: str) -> str:
        name = _model(written, offer)
        return name if resolve else written

    column = parse_column(line, own if _SAYS_OWN.search(line) else None, name_model)
    require_place(column.model, offer)
    return column


def _model(written: str, offer: Offer) -> str:
    """A model's name for the engines: one of the operator's, or a Hub id."""
    names = model_names(offer)
    if written in names:
        return offer.models[names.index(written)]
    if offer.hub and HUB_ID.fullmatch(written):
        return written
    more = ", or a Hub id such as owner/model" if offer.hub else ""
    raise DerbyError(
        f"There is no model {written!r:.60} on this page; choose one of {_list(names)}{more}."
    )


def model_names(offer: Offer) -> list[str]:
    """How each offered model is written in a column: by its label, or where that will not do, by
    its key.
    """
    labels = list(offer.labels.values())
    return [
        label
        if labels.count(label) == 1 and _PLAIN_LABEL.fullmatch(label) and not label.isdigit()
        else key
        for key, label in offer.labels.items()
    ]


def require_place(model: OwnModel, offer: Offer) -> None:
    """Raise DerbyError unless the engine, precision and device that a column names are offered."""
    engines = [runtime.engine for runtime in offer.runtimes]
    if model.engine and model.engine not in engines:
        raise DerbyError(
            f"There is no engine {model.engine!r:.60} here; choose from {_list(engines)}."
        )
    for what, name in (("precision", model.precision), ("device", model.device)):
        offered = [option for option, _ in place_options(what, model.engine, offer) if option]
        if not name or name in offered:
            continue
        raise DerbyError(f"There is no {what} {name!r:.60} here; choose from {_list(offered)}.")


def require_servers(column: Column, offer: Offer) -> None:
    """Raise DerbyError unless visitors may reach every server that the column names."""
    for name, field in settings_of(column.strategy).items():
        server = column.settings()[name]
        if not isinstance(field, ServerChoice) or server in offer.servers:
            continue
        if not (offer.limits.server_addresses and is_address(server)):
            named = f"choose from {_list(offer.servers)}" if offer.servers else "none is offered"
            raise DerbyError(f"There is no server {server!r:.60} on this page: {named}.")


def require_offered(target: ModelSpec, offer: Offer) -> None:
    """Raise DerbyError unless a column's target may run here; its name is not looked at."""
    runtime = offer.runtime(target.engine)
    if runtime is None:
        raise DerbyError(f"There is no engine {target.engine!r:.60} here.")
    for what, name, offered in (
        ("precision", target.precision, runtime.precisions),
        ("device", target.device, runtime.devices),
    ):
        if name not in offered:
            raise DerbyError(
                f"{runtime.title} has no {what} {name!r:.60} here; choose from {_list(offered)}."
            )


def place_options(what: str, engine: str, offer: Offer) -> list[tuple[str, str]]:
    """The precisions or devices of an engine; of all engines where a column names none."""
    runtimes = [r for r in offer.runtimes if engine in ("", r.engine)]
    names = [n for r in runtimes for n in (r.precisions if what == "precision" else r.devices)]
    return [AS_THE_RACE, *((name, name) for name in dict.fromkeys(names))]


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)
