"""What a model's name means to this server: one of the models that it offers, and a column.

A name is `MODEL` or `MODEL:COLUMN`: the column as the command line takes it, behind the name of an
offered model, which has no colon. `MODEL` alone means its speculative column.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from backend.errors import DerbyError
from backend.grammar.sources import GrammarSource
from backend.kvcache.sources import EARLIER_ANSWERS
from backend.strategies.column import Column, settings_of
from backend.strategies.declaration import Strategy
from backend.strategies.registry import strategies
from backend.types import ModelSpec
from backend.web.lineup import read_column, resolved
from backend.web.offer import Offer

#: What a model's name alone stands for.
USUAL = "speculative"

#: The longest name that is looked at.
LONGEST = 1_000


@dataclass(frozen=True, slots=True)
class Offered:
    """The models of this server. `default` is where they run unless a column says otherwise; its
    name is not looked at. `own`: by name, those that run elsewhere, or at another precision.
    """

    offer: Offer
    default: ModelSpec
    own: Mapping[str, ModelSpec] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Each model alone, and with each strategy that runs here and needs no program."""
        local = [name for name, each in strategies().items() if _is_for_texts(each)]
        return [
            name
            for model in self.offer.names
            for name in (model, *(f"{model}:{strategy}" for strategy in local))
        ]

    def read(self, name: str, own: GrammarSource | None) -> tuple[Column, ModelSpec]:
        """The column that a model's name means, and the race's model. `own`: the request's grammar.

        A column that keeps its cache begins with what it shares with earlier answers, unless the
        name says `cache=call`. Raises DerbyError for anything else.
        """
        known, (model, colon, text) = self.offer.names, name.partition(":")
        if model not in known or len(name) > LONGEST:
            raise DerbyError(
                f"There is no model {name!r:.80} here: write MODEL or MODEL:COLUMN, as in "
                f"{known[0]}:{USUAL}:k=4, with one of {', '.join(known)}."
            )
        wanted = self.offer.models[known.index(model)]
        target = self.own.get(wanted) or replace(self.default, name=wanted)
        column = self._column(text if colon else USUAL, own)
        self.offer.require_target(column.target(target))
        return column, target

    def _column(self, text: str, own: GrammarSource | None) -> Column:
        _, _, settings = text.partition(":")
        column = resolved(read_column(text, self.offer, own), self.offer)
        if column.strategy.lane is not None:
            raise DerbyError(f"{column.title} does not run here: choose another column.")
        if column.model.name:
            raise DerbyError(
                f"The column {text!r:.80} names its own model: write it before the column, as "
                "MODEL:COLUMN."
            )
        if own is not None:
            column = column.with_settings({"grammar": own})
        named = {part.partition("=")[0].strip() for part in settings.split(",")}
        usual = "cache" in settings_of(column.strategy) and "cache" not in named
        return column.with_settings({"cache": EARLIER_ANSWERS}) if usual else column


def _is_for_texts(strategy: Strategy) -> bool:
    return strategy.lane is None and not (strategy.restart or strategy.single)
