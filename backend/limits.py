"""Limits for visitors of a server, which its operator can set."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from backend.errors import DerbyError
from backend.untrusted import read_as

#: Limits for whoever cannot give options, as on a Space: "NAME=VALUE,NAME=VALUE".
VARIABLE = "DECODE_DERBY_LIMITS"

#: Above every limit that makes sense, and no float is inexact below it.
LARGEST = 2**53

GIB = 2**30


def _limit(value: int, help_text: str, least: int = 1) -> Any:
    return Field(value, ge=least, le=LARGEST, description=help_text)


@dataclass(frozen=True, slots=True)
class Limits:
    """Whole numbers. The defaults suit a page of one's own; `PUBLIC` is for everybody's. Each
    field's description is a line on what it bounds. Raises pydantic's ValidationError.
    """

    columns: int = _limit(12, "columns of one race")
    tokens: int = _limit(8192, "new tokens of one column")
    prompt_characters: int = _limit(65_536, "characters of a prompt")
    races_per_hour: int = _limit(100_000, "races of one visitor in an hour")
    waiting: int = _limit(32, "waiting races of all visitors")
    waiting_per_address: int = _limit(4, "waiting races of one address, if --proxy is set")
    race_seconds: int = _limit(3600, "seconds after which a race ends if others wait")
    absence_seconds: int = _limit(600, "seconds before a visitor without a connection is removed")
    visitors: int = _limit(200, "visitors whose last race is kept in memory")
    benchmark_races: int = _limit(1000, "prompts times repeats of a benchmark; 0: no benchmarks", 0)
    server_addresses: int = _limit(
        1, "1: columns may use any server's address; 0: only listed servers", 0
    )
    models: int = _limit(8, "models of one race, without drafts")
    hub_downloads: int = _limit(1, "1: any model of the Hub; 0: only offered ones", 0)
    session_bytes: int = _limit(GIB, "bytes of memory for KV caches that are kept between races", 0)
    request_bytes: int = _limit(2**23, "bytes of one request's body", 2**17)

    def changed(self, texts: Iterable[str]) -> "Limits":
        """These limits with some of them changed, each text NAME=VALUE. Raises DerbyError."""
        declared, values = DECLARED, dict[str, int]()
        for text in filter(None, (text.strip() for text in texts)):
            name, _, value = (part.strip() for part in text.partition("="))
            if name not in declared:
                raise DerbyError(
                    f"There is no limit {name!r:.60}; write NAME=VALUE with one of "
                    f"{', '.join(declared)}."
                )
            kind = Annotated[(int, *declared[name].metadata)]
            values[name] = read_as(kind, value, f"The limit {name}")
        return replace(self, **values)


#: What each limit is declared as, by name.
DECLARED: Mapping[str, FieldInfo] = vars(Limits)["__pydantic_fields__"]

#: For one's own machine.
PRIVATE = Limits()

#: For a page that anybody can reach: on a Space, by a share link, or on a public address.
PUBLIC = Limits(
    columns=8,
    tokens=1024,
    prompt_characters=16_384,
    races_per_hour=60,
    race_seconds=120,
    absence_seconds=330,  # a connection lost for five minutes finds its race again
    benchmark_races=12,
    server_addresses=0,  # else visitors would reach what this machine reaches
    models=3,
    hub_downloads=0,
    request_bytes=2**18,
)


def limits_of(texts: Iterable[str], *, public: bool) -> Limits:
    """The usual limits, changed by the environment's and then by these. Raises DerbyError."""
    stated = os.environ.get(VARIABLE, "").split(",")
    return (PUBLIC if public else PRIVATE).changed(stated).changed(texts)
