"""The line-up of a race, which is a text: one column a line, in the command line's words.

What the page's editor shows, what a form or a program sends, and what a race runs are made of it.
Nothing that comes from a browser is trusted. Models go by the labels or keys of the offer or by a
Hub id; no path passes.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from backend.errors import DerbyError
from backend.grammar.sources import GrammarSource
from backend.libraries.server import is_address
from backend.strategies.column import Column, parse_column, settings_of
from backend.strategies.settings import OWN, ServerChoice
from backend.types import ModelSpec
from backend.web.offer import Offer

MAX_TEXT = 4_000

#: Stands for the visitor's grammar while only its place in the line-up matters.
ANY_OWN = GrammarSource("regex", "own", "my own")
_SAYS_OWN = re.compile(rf"[:,]\s*grammar\s*=\s*{OWN}\s*(,|$)")


@dataclass(frozen=True, slots=True)
class Lineup:
    """The lines that are not blank, with their numbers from 1, and the column of each: models as
    they are written, and `ANY_OWN` for a grammar of the visitor's.
    """

    lines: tuple[tuple[int, str], ...]
    columns: tuple[Column, ...]

    @staticmethod
    def read(text: str, offer: Offer) -> "Lineup":
        """Raises DerbyError, with the line's number, for the first flaw."""
        lines = lines_of(text, offer)
        columns = []
        for number, line in lines:
            with _telling(number):
                columns.append(read_column(line, offer))
        return Lineup(tuple(lines), tuple(columns))

    @property
    def asks_for_own(self) -> bool:
        """Whether a column has the visitor's own grammar."""
        return any(column.settings().get("grammar") == ANY_OWN for column in self.columns)

    def race(
        self, offer: Offer, target: ModelSpec, own: GrammarSource | None = None
    ) -> tuple[Column, ...]:
        """The columns of a race on `target`, with the engines' names of their models and with `own`
        as the visitor's grammar. Raises DerbyError for a column that may not be raced here.
        """
        columns = []
        for (number, _), written in zip(self.lines, self.columns, strict=True):
            with _telling(number):
                column = resolved(written, offer, own)
                if column.strategy.loads:
                    offer.around(column.strategy.library).require_target(column.target(target))
                columns.append(column)
        models = {column.target(target) for column in columns if column.strategy.loads}
        if len(models) > offer.limits.models:
            raise DerbyError(
                f"The columns run on {len(models)} models, which differ in name, engine, "
                f"precision or device; a race may have {offer.limits.models} here: remove some."
            )
        return tuple(columns)


def unused_grammar(text: Any, offer: Offer) -> str:
    """A sentence that says that no column of the line-up uses the visitor's grammar; "" if one
    does, or if the line-up has a mistake.
    """
    try:
        used = Lineup.read(str(text_of(text)), offer).asks_for_own
    except DerbyError:
        return ""
    return "" if used else 'No column uses it: set the grammar of a column to "my own".'


@contextmanager
def _telling(number: int) -> Iterator[None]:
    """Add the number of the line to an error about it."""
    try:
        yield
    except DerbyError as error:
        raise DerbyError(f"Line {number} of the line-up: {error}") from error


def text_of(value: Any) -> Any:
    """The text in what the editor sends, which may be the text alone."""
    return value.get("text") if isinstance(value, dict) else value


def lines_of(text: str, offer: Offer, least: int = 1) -> list[tuple[int, str]]:
    """The lines that are not blank, with their numbers. Raises DerbyError for too many or few,
    before anything is made of them.
    """
    most = offer.most_columns
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


def read_column(line: str, offer: Offer, own: GrammarSource | None = ANY_OWN) -> Column:
    """The column of a line, with the models as they are written. Raises DerbyError if it is not a
    column or is not offered.
    """
    column = parse_column(line, own if _SAYS_OWN.search(line) else None)
    column.named(offer.model_named)
    there, place = offer.around(column.strategy.library), column.model
    there.require_place(place.engine, place.precision, place.device)
    _require_servers(column, offer)
    return column


def resolved(column: Column, offer: Offer, own: GrammarSource | None = None) -> Column:
    """The column that is raced: with the engines' names of its models, and with the visitor's
    grammar filled in.
    """
    if own is not None and column.settings().get("grammar") == ANY_OWN:
        column = column.with_settings({"grammar": own})
    return column.named(offer.model_named)


def _require_servers(column: Column, offer: Offer) -> None:
    """Raise DerbyError unless visitors may reach every server that the column names."""
    for name, field in settings_of(column.strategy).items():
        server = column.settings()[name]
        if not isinstance(field, ServerChoice) or server in offer.servers:
            continue
        if not (offer.limits.server_addresses and is_address(server)):
            servers = ", ".join(offer.servers)
            named = f"choose from {servers}" if servers else "none is offered"
            raise DerbyError(f"There is no server {server!r:.60} on this page: {named}.")
