"""A record as text for the fragment of a page's address: nobody has to keep it.

The record's document in columns of bytes (`packing`), deflated, in base64url, behind a letter for
the version. Deflate begins with a dictionary of what most records say, `link-a.txt` for version
"a": a link can be read only with the dictionary that it was made with, so that file never changes.
"""

import json
import re
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

from backend.errors import DerbyError
from backend.records.document import Document, document_of, read_document, read_json, refusing
from backend.records.packing import HIGH, TEXTS, Planes, pack, unpack
from backend.records.record import RaceRecord
from backend.records.rounding import rounded
from backend.records.shorthand import long, short

#: Characters of a link that can be pasted nearly anywhere: a Discord message holds 2,000, the
#: address bar of Internet Explorer, after which many lists and forms were made, 2,083.
PASTED = 2_000

#: Characters of a link for a Telegram message (4,096) or that of a paying member of Discord
#: (4,000). Beyond, a file.
LONGEST = 4_000

#: Characters of a link that are read.
MAX_CHARACTERS = 1 << 16

#: Bytes that a link may inflate to, and values and characters that may come of these. A race of
#: six columns of 128 tokens inflates to 20 kB, and its document has 150,000 characters.
MAX_BYTES = 1 << 18
MAX_VALUES = 1 << 20

#: What stands before a link's text in an address.
FRAGMENT = "race="

_LETTER = "a"

#: Bytes of the checksum (CRC-32).
_CHECK = 4
_DICTIONARY = Path(__file__).with_name("link-a.txt").read_bytes()
_LINK = re.compile(rf"(?:.*#)?(?:{FRAGMENT})?({_LETTER}[\w-]+)", re.ASCII | re.DOTALL)

#: Kinds of events that are shown on request, and left out where there is no room.
DETAILS = ("Proposed", "LoadKnown")

#: Significant digits to which steps' times are rounded where there is less room still.
FEWER = (3, 2)

Held = Literal["all", "all but details", "rounded", "settings"]


@dataclass(frozen=True, slots=True)
class Link:
    """`text` for the fragment, and what of the record it holds: all; all but DETAILS; that with
    `rounded` times; or the settings alone.
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
    settings = Link(encode(record.settings), "settings")
    if len(settings.text) > most:
        raise DerbyError(
            f"A link with the race's settings would have {len(settings.text):,} characters, and "
            f"{most:,} fit: save a file instead."
        )
    made = (each for each in _fuller(record) if len(each.text) <= most and _is_readable(each.text))
    return next(made, settings)


def _fuller(record: RaceRecord) -> Iterator[Link]:
    """Links that hold more than the settings, the fullest first."""
    if not record.events:
        return
    yield Link(encode(record), "all")
    brief = record.without(DETAILS)
    if brief != record:
        yield Link(encode(brief), "all but details")
    for digits in FEWER:
        yield Link(encode(rounded(brief, digits)), "rounded")


def encode(record: RaceRecord) -> str:
    """The whole record, however long that is."""
    document = document_of(record)
    return _LETTER + urlsafe_b64encode(_deflated(document)).decode().rstrip("=")


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
        raise DerbyError("This is no link to a race: copy the whole of it, from # to its end.")
    with refusing():
        packed = urlsafe_b64decode(found[1][1:] + "=" * (-(len(found[1]) - 1) % 4))
        data = _inflated(packed[:-_CHECK])
        if crc32(data) != int.from_bytes(packed[-_CHECK:]):
            raise ValueError("it was not copied whole")
        document = _document(data)
    return read_document(document)


def is_link(text: str) -> bool:
    """True of what could be a link to a race."""
    return len(text) <= MAX_CHARACTERS and _LINK.fullmatch(text.strip()) is not None


def _is_readable(text: str) -> bool:
    """False of what is short as text, and yet more than a reader takes."""
    try:
        decode(text)
    except DerbyError:
        return False
    return True


def _deflated(document: Document) -> bytes:
    """The lists of events by kind, each column's order of kinds, and all else as it is."""
    columns = len(document["columns"])
    rows: list[list[Any]] = [[] for _ in range(columns + 1)]  # the last one is the race's own
    for event in map(short, document.pop("events")):
        rows[event.pop("column", columns)].append(event)
    kinds: dict[str, list[Any]] = {}
    order = [[_filed(event, kinds) for event in row] for row in rows]
    planes = Planes()
    head = {
        **document,
        "order": pack(order, planes),
        "events": {kind: pack(events, planes) for kind, events in kinds.items()},
    }
    head["sizes"] = [len(planes.kinds[kind]) for kind in (TEXTS, HIGH)]
    text = json.dumps(head, ensure_ascii=False, separators=(",", ":"))
    return _blocks([f"{text}\n".encode(errors="replace"), *planes.kinds])


def _filed(event: dict[str, Any], kinds: dict[str, list[Any]]) -> int:
    """Put the event with those of its kind; the kind's place."""
    kind = event.pop("kind")
    kinds.setdefault(kind, []).append(event)
    return list(kinds).index(kind)


def _blocks(parts: list[bytes | bytearray]) -> bytes:
    """The parts deflated, each with an alphabet of its own, and a checksum of them all."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zdict=_DICTIONARY)
    packed = [deflate.compress(part) + deflate.flush(zlib.Z_BLOCK) for part in parts]
    check = crc32(b"".join(parts)).to_bytes(_CHECK)
    return b"".join([*packed, deflate.flush(), check])


def _inflated(packed: bytes) -> bytes:
    """Raises ValueError for what is damaged, or grows too long."""
    inflate = zlib.decompressobj(-15, zdict=_DICTIONARY)
    try:
        data = inflate.decompress(packed, MAX_BYTES)
    except zlib.error as error:
        raise ValueError("it is damaged") from error
    if inflate.unconsumed_tail:
        raise ValueError(f"it would inflate to more than {MAX_BYTES:,} bytes")
    if not inflate.eof or inflate.unused_data:
        raise ValueError("it is cut off, or something follows it")
    return data


def _document(data: bytes) -> Document:
    """What `_deflated` was given. Raises what `unpack` raises."""
    text, _, planes_data = data.partition(b"\n")
    head = read_json(text)
    texts, high = head.pop("sizes")
    if not 0 <= texts <= texts + high <= len(planes_data):
        raise ValueError("it ends too early")
    planes = Planes(
        planes_data[:texts],
        planes_data[texts : texts + high],
        planes_data[texts + high :],
        MAX_VALUES,
    )
    columns = len(head["columns"])
    order = unpack(head.pop("order"), columns + 1, planes)
    forms = head.pop("events")
    counts = [0] * len(forms)
    for place in (place for row in order for place in row):
        counts[place] += 1
    if 0 in counts:
        raise ValueError("it names events that never happened")
    kinds = [
        iter([{**event, "kind": kind} for event in unpack(form, count, planes)])
        for (kind, form), count in zip(forms.items(), counts, strict=True)
    ]
    events = [
        long(next(kinds[place]) | ({"column": column} if column < columns else {}))
        for column, row in enumerate(order)
        for place in row
    ]
    return {**head, "events": events}
