"""The file a snapshot is in: one JSON object, and 4-D arrays behind it.

A safetensors file whose header holds the object as a string and two SHA-256 digests, one over the
arrays, one over everything else. Headers are written in one canonical form and any other is
refused, so a file is either exactly what was saved or a ValueError; the digests find damage, not
forgery.
"""

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.errors import DerbyError
from backend.models.prepared import flush

FORMAT = "decode-derby-snapshot-1"
#: Bytes of a header, tokens and record included. Bounds what is parsed before a digest is checked.
MAX_HEADER = 4 * 2**20

Table = dict[str, tuple[str, list[int]]]  # a tensor's safetensors dtype and shape, by its name
Arrays = dict[str, dict[str, NDArray[Any]]]  # by cache, then by name

_CODES = ("F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8")
_DTYPES = {code: np.dtype(f"<{code[0].lower()}{int(code[1:]) // 8}") for code in _CODES}
_CODE_OF = {dtype: code for code, dtype in _DTYPES.items()}
# O_NONBLOCK keeps a named pipe from holding us up; Windows lacks it and O_NOFOLLOW.
_FLAGS = (os.O_RDONLY, *(getattr(os, f"O_{x}", 0) for x in ("NOFOLLOW", "NONBLOCK", "BINARY")))
_READ = sum(_FLAGS)
_CREATE = (
    os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
)


def render(
    content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], *, digest: bool = True
) -> tuple[bytes, list[memoryview]]:
    """A file's header, and the bytes of its arrays in the order they follow it.

    Arrays go by names "cache/key". Without `digest`, none is made over the arrays. ValueError or
    TypeError says what cannot be written.
    """
    ordered = {
        name: np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        for name, array in arrays.items()
    }
    # The widest dtypes first, so that every array is aligned.
    ordered = dict(sorted(ordered.items(), key=lambda item: (-item[1].itemsize, item[0])))
    for name, array in ordered.items():
        if array.dtype not in _CODE_OF:
            raise ValueError(f"array {name!r} is {array.dtype}, not one of {', '.join(_DTYPES)}")
    chunks = [array.reshape(-1).view(np.uint8).data for array in ordered.values()]
    made = hashlib.sha256()
    for chunk in chunks if digest else ():
        made.update(chunk)
    table = {name: (_CODE_OF[array.dtype], list(array.shape)) for name, array in ordered.items()}
    return _header(_json(content), table, made.hexdigest() if digest else ""), chunks


def _header(text: str, table: Table, data_digest: str) -> bytes:
    """The one header that these three have: its length in 8 bytes, JSON, blanks to a multiple of 8.

    Its digest covers the JSON with the digest itself left empty.
    """
    metadata = {"format": FORMAT, "snapshot": text, "arrays": data_digest, "digest": ""}
    entries: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, (code, shape) in table.items():
        start, end = end, end + _nbytes(code, shape)
        entries[name] = {"dtype": code, "shape": shape, "data_offsets": [start, end]}
    metadata["digest"] = hashlib.sha256(_json(entries).encode()).hexdigest()
    body = _json(entries).encode()
    body += b" " * (-len(body) % 8)
    return len(body).to_bytes(8, "little") + body


def read(data: memoryview, size: int, *, digest: bool = True) -> tuple[dict[str, Any], Arrays]:
    """Content and arrays of a file of `size` bytes. ValueError says what is wrong.

    `data` is all of it, or only the header: then the arrays are hollow, shapes without values.
    Without `digest`, the arrays are taken as they are.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    if start > size:
        raise ValueError(f"it has {size} bytes, fewer than its header alone should have")
    if start > 8 + MAX_HEADER:
        raise ValueError(f"record and tokens take {start} bytes, and the limit is {MAX_HEADER}")
    entries = _loads(bytes(data[8:start]).decode("ascii", "replace"), "its header")
    match entries.pop("__metadata__", None):
        case {"format": str(version), "snapshot": str(text), "arrays": str(data_digest)}:
            if version != FORMAT:
                raise ValueError(f"its format is {version!r}, and this version reads {FORMAT!r}")
        case _:
            raise ValueError("it is not a snapshot of Decode Derby")
    table = _table(entries)
    if _header(text, table, data_digest) != data[:start]:
        raise ValueError("its header is not the one that was saved")
    expected = start + sum(_nbytes(*entry) for entry in table.values())
    if size != expected:
        raise ValueError(f"it has {size} bytes where its header tells of {expected}")
    if digest and len(data) == size and hashlib.sha256(data[start:]).hexdigest() != data_digest:
        raise ValueError("its arrays are not those that were saved")
    return _loads(text, "its content"), _arrays(table, data, start, size)


def _table(entries: dict[str, Any]) -> Table:
    table: Table = {}
    for name, entry in entries.items():
        match entry:
            case {"dtype": str(code), "shape": [_, _, _, _] as shape} if (
                "/" in name and code in _DTYPES and all(is_whole(n, 1) for n in shape)
            ):
                table[name] = code, list(shape)
            case _:
                raise ValueError(f"array {name!r} is not 4-D with values of a known dtype in it")
    return table


def _arrays(table: Table, data: memoryview, start: int, size: int) -> Arrays:
    """Arrays by cache and key, views of `data` from byte `start` on, or hollow ones."""
    arrays: Arrays = {}
    for name, (code, shape) in table.items():
        if len(data) == size:
            array = np.ndarray(shape, _DTYPES[code], data, start)
        else:
            array = np.broadcast_to(np.zeros((), _DTYPES[code]), shape)
        start += array.nbytes
        cache, _, key = name.partition("/")
        arrays.setdefault(cache, {})[key] = array
    return arrays


def _loads(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return value
    raise ValueError(f"{what} is not a JSON object")


def open_file(path: Path) -> BufferedReader:
    """Open anything at all for reading. A link is an OSError; a named pipe is not waited for."""
    return os.fdopen(os.open(path, _READ), "rb")


def read_header(file: BufferedReader) -> memoryview:
    """What `read` needs at least of a file that was just opened."""
    lead = file.read(8)
    return memoryview(lead + file.read(min(int.from_bytes(lead, "little"), MAX_HEADER)))


def write_file(path: Path, chunks: Iterable[bytes | memoryview], *, durable: bool = True) -> None:
    """Put a file that its owner alone can read in place, once all of it is written.

    The partial file's name is taken first: of several writers of one `path`, in this process or in
    others, one writes it, and the rest raise FileExistsError and touch nothing. After any other
    error there is no file. `durable`: the disk holds it before this returns.
    """
    written = path.with_suffix(".partial")
    descriptor = os.open(written, _CREATE, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            written.chmod(0o600)  # a umask may have taken away the owner's rights
            _require_absent(path)
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        written = written.replace(path)
        if durable:
            flush(path.parent)
    except BaseException:
        written.unlink(missing_ok=True)
        raise


def _require_absent(path: Path) -> None:
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))


@contextmanager
def refusing(what: str, remedy: str) -> Iterator[None]:
    """Turn a ValueError, or a type or nesting that JSON cannot have, into a DerbyError."""
    try:
        yield
    except (ValueError, TypeError, RecursionError) as error:
        # A name or token id of a forged file may be megabytes long.
        raise DerbyError(f"{what}: {str(error)[:300]}; {remedy}") from error


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _nbytes(code: str, shape: list[int]) -> int:
    return prod(shape) * _DTYPES[code].itemsize


def is_whole(value: object, low: int) -> bool:
    """Whether a JSON value is an integer, not a Boolean, with low <= value < 2**31."""
    return type(value) is int and low <= value < 2**31


def hash_tokens(prompt: list[int], answer: list[int]) -> str:
    """Hex SHA-256 of where the answer begins and all token ids, as 64-bit integers."""
    return hashlib.sha256(np.array([len(prompt), *prompt, *answer], "<i8").data).hexdigest()
