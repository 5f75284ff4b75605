"""Limits for visitors of a page, which its operator can set."""

import os
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from backend.errors import DerbyError
from backend.types import MAX_COLUMNS, MAX_NEW_TOKENS
from backend.untrusted import UntrustedError, read_as

#: Limits for whoever cannot give options, as on a Space: "NAME=VALUE,NAME=VALUE".
VARIABLE = "DECODE_DERBY_LIMITS"


def _limit(value: int, help_text: str, least: int = 1, most: int | None = None) -> Any:
    return Field(value, ge=least, le=most, description=help_text)


class Limits(BaseModel):
    """The defaults suit a page of one's own; `PUBLIC` is for everybody's. Each
    field's description is a line on what it bounds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    columns: int = _limit(MAX_COLUMNS, "columns of one race", most=MAX_COLUMNS)
    tokens: int = _limit(MAX_NEW_TOKENS, "new tokens of one column", most=MAX_NEW_TOKENS)
    prompt_characters: int = _limit(65_536, "characters of a prompt")
    seconds: int = _limit(3600, "seconds after which a race ends if others wait")
    waiting: int = _limit(32, "waiting races of all visitors")
    models: int = _limit(8, "models of one race, without drafts")
    benchmark_races: int = _limit(1000, "prompts of a benchmark on the page; 0: no benchmarks", 0)
    hub: bool = Field(
        default=True,
        description="1: any model of the Hub, any server's address, own grammars for libraries, "
        "grammars of 256 KiB; 0: none of these, grammars of 64 KiB",
    )

    def changed(self, texts: Iterable[str]) -> "Limits":
        """These limits with some of them changed, each text NAME=VALUE. Raises DerbyError."""
        values: dict[str, Any] = self.model_dump()
        for text in filter(None, map(str.strip, texts)):
            name, _, value = (part.strip() for part in text.partition("="))
            if name not in values:
                raise DerbyError(
                    f"There is no limit {name!r:.60}: write NAME=VALUE with one of "
                    f"{', '.join(values)}."
                )
            values[name] = value
        try:
            return read_as(Limits, values)
        except UntrustedError as error:
            raise DerbyError(f"The limit {error.clause}.") from error


#: For one's own machine.
PRIVATE = Limits()

#: For a page that anybody can reach: on a Space, by a share link, or on a public address.
PUBLIC = Limits(
    columns=8,
    tokens=1024,
    prompt_characters=16_384,
    seconds=120,
    models=3,
    benchmark_races=12,
    hub=False,  # else visitors would reach what this machine reaches
)


def limits_of(texts: Iterable[str], *, public: bool) -> Limits:
    """The usual limits, changed by the environment's and then by these. Raises DerbyError."""
    stated = os.environ.get(VARIABLE, "").split(",")
    return (PUBLIC if public else PRIVATE).changed(stated).changed(texts)
