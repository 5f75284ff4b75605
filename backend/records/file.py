"""A record as a file: JSON in UTF-8."""

import os
import re
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from backend.errors import DerbyError
from backend.records.document import read_document, refusal, write_document
from backend.records.record import RaceRecord

#: Bytes of a record that are read. Twelve columns of 8,192 tokens, a step and what was proposed in
#: it some 400 bytes for each, are 40 MB; the five most probable tokens of each place are 10 more.
MAX_BYTES = 1 << 26


#: How a file begins: with a checksum (CRC-32) of all that follows it. It finds damage, no forgery.
_CHECK = re.compile(rb'\{"check":"([0-9a-f]{8})",')


def as_bytes(record: RaceRecord) -> bytes:
    """The record as JSON, which `from_bytes` reads."""
    rest = write_document(record).removeprefix(b"{")
    return b'{"check":"%08x",' % crc32(rest) + rest


def from_bytes(data: bytes, most: int = MAX_BYTES) -> RaceRecord:
    """The record that `as_bytes` wrote. Raises DerbyError for anything else, or more than `most`
    bytes.
    """
    if len(data) > most:
        raise DerbyError(
            f"The record is longer than {most:,} bytes, which is the most that is read: record a "
            "race of fewer columns or tokens."
        )
    check = _CHECK.match(data)
    if check is None:
        raise refusal("it does not begin with its checksum")
    rest = data[check.end() :]
    if crc32(rest) != int(check[1], 16):
        raise DerbyError(
            "The record was changed or damaged after it was saved: use the original file."
        )
    return read_document(b"{" + rest)


def require_folder(path: Path) -> None:
    """Raise DerbyError unless there is a folder for the file: before a race, not behind it."""
    if not path.parent.is_dir() or path.is_dir():
        raise DerbyError(f"{str(path)!r} cannot be written: name another file.")


def save(record: RaceRecord, path: Path) -> None:
    """Write the record to `path`, which is there whole or as it was. Raises DerbyError."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(as_bytes(record))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise DerbyError(
            f"The record cannot be written to {str(path)!r} ({error.strerror}): name another file."
        ) from error


def load(path: Path) -> RaceRecord:
    """Read a record from `path`. Raises DerbyError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise DerbyError(
            f"The record {str(path)!r} cannot be read ({error.strerror}): name another file."
        ) from error
    return from_bytes(data)
