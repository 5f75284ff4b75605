"""A record as text for the fragment of a page's address: nobody has to keep it.

The record's JSON, its events folded (`fold.py`), packed by LZMA behind a checksum (CRC-32, which
finds damage), in base64url, behind a letter for the form. Nothing is rounded: what comes back is
the very record.
"""

import lzma
import re
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from backend.errors import DerbyError
from backend.records.document import (
    MAX_VALUES,
    document_of,
    read_document,
    refusal,
    write_document,
    write_values,
)
from backend.records.fold import fold, unfold
from backend.records.record import RaceRecord
from backend.untrusted import UntrustedError, read_json

#: Characters of a link that can be pasted nearly anywhere: a Discord message holds 2,000.
PASTED = 2_000

#: Characters of a link at most. Browsers take more; mails and documents do not always.
LONGEST = 16_000

#: Characters at most of a link that a browser keeps, and nobody pastes: its storage holds some five
#: million, for fifty races, and a request six links, to compare them.
KEPT = 40_000

#: Characters of a link that are read, and bytes of JSON that may come of them, folded or not.
MAX_CHARACTERS = 1 << 16
MAX_BYTES = 1 << 20

#: What stands before a link's text in an address.
FRAGMENT = "race="

#: The form of today; the one before it, JSON deflated by zlib, which is still read; and one that is
#: refused.
_LETTER, _BEFORE, _EARLIER = "c", "b", "a"
_FORMS = _LETTER + _BEFORE + _EARLIER
_LINK = re.compile(rf"(?:.*#)?(?:{FRAGMENT})?([{_FORMS}][\w-]+)", re.ASCII | re.DOTALL)

#: How LZMA packs, and looks back at most, which bounds its memory. Without a header that says so.
_PACKING: list[dict[str, Any]] = [
    {"id": lzma.FILTER_LZMA1, "dict_size": MAX_BYTES, "pb": 0, "nice_len": 273}
]

#: Bytes of the checksum.
_CHECK = 4

#: Why a link is refused whose bytes are not those that were written.
_DAMAGED = "the link is damaged"

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
        if len(write_document(part)) > MAX_BYTES or len(folded := _folded(part)) > MAX_BYTES:
            continue
        made = Link(_packed(folded), holds)
        if len(made.text) <= most:
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
    return _packed(_folded(record))


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
    letter, packed = found[1][0], found[1][1:]
    return read_document(_inflated(packed) if letter == _BEFORE else _unfolded(_unpacked(packed)))


def is_link(text: str) -> bool:
    """True of what could be a link to a race."""
    return len(text) <= MAX_CHARACTERS and _LINK.fullmatch(text.strip()) is not None


def _folded(record: RaceRecord) -> bytes:
    """The record as JSON, its events folded."""
    values = document_of(record)
    return write_values(values | {"events": fold(values["events"])})


def _unfolded(data: bytes) -> bytes:
    """The record's JSON of what `_folded` made. Raises DerbyError for anything else."""
    try:
        values = read_json(dict[str, Any], data, "it", MAX_VALUES)
        whole = write_values(values | {"events": unfold(values.get("events"), MAX_BYTES)})
    except UntrustedError as error:
        raise refusal(error.clause) from error
    except ValueError as error:
        raise refusal("it holds a number that JSON has not") from error
    if len(whole) > MAX_BYTES:
        raise _too_long()
    return whole


def _packed(data: bytes) -> str:
    packed = lzma.compress(data, lzma.FORMAT_RAW, filters=_PACKING)
    checked = zlib.crc32(packed).to_bytes(_CHECK) + packed
    return _LETTER + urlsafe_b64encode(checked).decode().rstrip("=")


def _unpacked(text: str) -> bytes:
    """What `_packed` packed. Raises DerbyError for what is damaged, or grows too long."""
    coded = _decoded(text)
    check, packed = coded[:_CHECK], coded[_CHECK:]
    if zlib.crc32(packed).to_bytes(_CHECK) != check:
        raise refusal(_DAMAGED)
    expand = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_PACKING)
    try:
        data = expand.decompress(packed, MAX_BYTES + 1)
    except lzma.LZMAError as error:
        raise refusal(_DAMAGED) from error
    if len(data) > MAX_BYTES:
        raise _too_long()
    if not expand.eof or expand.unused_data:
        raise refusal(_DAMAGED)
    return data


def _inflated(text: str) -> bytes:
    """The JSON of a link of the form before. Raises DerbyError as `_unpacked` does."""
    inflate = zlib.decompressobj()
    try:
        data = inflate.decompress(_decoded(text), MAX_BYTES)
    except zlib.error as error:
        raise refusal(_DAMAGED) from error
    if inflate.unconsumed_tail:
        raise _too_long()
    if not inflate.eof or inflate.unused_data:
        raise refusal("the link is cut off, or something follows it")
    return data


def _decoded(text: str) -> bytes:
    """The bytes of base64url. Raises DerbyError."""
    try:
        return urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError as error:
        raise refusal(_DAMAGED) from error


def _too_long() -> DerbyError:
    return refusal(f"the link would inflate to more than {MAX_BYTES:,} bytes")
