"""A record as text for the fragment of a page's address: nobody has to keep it.

The record's JSON, deflated (zlib, whose checksum finds damage), in base64url, behind a letter for
the form.
"""

import re
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from backend.errors import DerbyError
from backend.records.document import read_document, refusal, write_document
from backend.records.record import RaceRecord

#: Characters of a link that can be pasted nearly anywhere: a Discord message holds 2,000.
PASTED = 2_000

#: Characters of a link at most. Browsers take more; mails and documents do not always.
LONGEST = 16_000

#: Characters of a link that are read, and bytes of JSON that may come of them.
MAX_CHARACTERS = 1 << 16
MAX_BYTES = 1 << 20

#: What stands before a link's text in an address.
FRAGMENT = "race="

#: The form of today; links of the one before ("a") are refused.
_LETTER, _EARLIER = "b", "a"
_LINK = re.compile(rf"(?:.*#)?(?:{FRAGMENT})?([{_LETTER}{_EARLIER}][\w-]+)", re.ASCII | re.DOTALL)

#: Kinds of events that are shown on request, and left out where there is no room.
DETAILS = ("Proposed", "LoadKnown")

Held = Literal["all", "all but details", "settings"]


@dataclass(frozen=True, slots=True)
class Link:
    """`text` for the fragment, and what of the record it holds: all; all but DETAILS; or the
    settings alone.
    """

    text: str
    holds: Held

    @property
    def fragment(self) -> str:
        """What to put behind a page's address."""
        return f"#{FRAGMENT}{self.text}"


def link(record: RaceRecord, most: int = LONGEST) -> Link:
    """As much of the record as fits into `most` characters. Raises DerbyError if not even the
    settings do.
    """
    for holds, part in _parts(record):
        data = write_document(part)
        made = Link(_packed(data), holds)
        if len(made.text) <= most and len(data) <= MAX_BYTES:
            return made
    raise DerbyError(
        f"A link with the race's settings has more than {most:,} characters: save a file instead."
    )


def _parts(record: RaceRecord) -> Iterator[tuple[Held, RaceRecord]]:
    """What a link may hold of the record, the most first."""
    if record.events:
        yield "all", record
        yield "all but details", record.without(DETAILS)
    yield "settings", record.settings


def encode(record: RaceRecord) -> str:
    """The whole record, however long that is."""
    return _packed(write_document(record))


def decode(text: str) -> RaceRecord:
    """The record of a link, of its fragment, or of that text alone. Raises DerbyError for anything
    else.
    """
    if len(text) > MAX_CHARACTERS:
        raise DerbyError(
            f"The link has {len(text):,} characters; {MAX_CHARACTERS:,} are read at most: use a "
            "file."
        )
    found = _LINK.fullmatch(text.strip())
    if found is None:
        raise DerbyError("This is not a link to a race: copy all of it, from # to the end.")
    if found[1].startswith(_EARLIER):
        raise DerbyError("Only an earlier version can read this link: run the race again.")
    return read_document(_unpacked(found[1]))


def is_link(text: str) -> bool:
    """True of what could be a link to a race."""
    return len(text) <= MAX_CHARACTERS and _LINK.fullmatch(text.strip()) is not None


def _packed(data: bytes) -> str:
    return _LETTER + urlsafe_b64encode(zlib.compress(data, 9)).decode().rstrip("=")


def _unpacked(text: str) -> bytes:
    """What `_packed` packed. Raises DerbyError for what is damaged, or grows too long."""
    coded = text.removeprefix(_LETTER)
    inflate = zlib.decompressobj()
    try:
        data = inflate.decompress(urlsafe_b64decode(coded + "=" * (-len(coded) % 4)), MAX_BYTES)
    except (ValueError, zlib.error) as error:
        raise refusal("the link is damaged") from error
    if inflate.unconsumed_tail:
        raise refusal(f"the link would inflate to more than {MAX_BYTES:,} bytes")
    if not inflate.eof or inflate.unused_data:
        raise refusal("the link is cut off, or something follows it")
    return data
