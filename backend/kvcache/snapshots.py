"""A column's state in a file: what was asked, its tokens, and the KV caches to go on from.

A file is either exactly what was saved or a DerbyError; `snapshot_file` says how it is laid out.
"""

import builtins
import errno
import operator
import os
import re
import secrets
import stat
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.errors import DerbyError
from backend.kvcache.snapshot_file import (
    Arrays,
    hash_tokens,
    is_whole,
    open_file,
    read,
    read_header,
    refusing,
    render,
    write_file,
)
from backend.kvcache.sources import is_snapshot_id
from backend.limits import PRIVATE, Limits
from backend.models.prepared import cache_dir

#: The folder of snapshots, for machines that share one.
VARIABLE = "DECODE_DERBY_SNAPSHOTS"

#: Seconds after which a partial file is nobody's any more.
ABANDONED = 3600.0

_NAME = re.compile(r"([0-9a-f]{16})(?:-([0-9a-f]{32}))?\.safetensors")
_CREATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", re.ASCII)
_DAMAGED = "remove it and save it anew."


@dataclass(frozen=True, slots=True)
class Binding:
    """What a KV cache fits to. `layout` is as layout_of writes it, "" for no arrays."""

    fingerprint: str
    engine: str
    precision: str
    layout: str


@dataclass(frozen=True, eq=False)
class StoredCache:
    """The KV cache of a text's first `length` tokens.

    `arrays` are 4-D with `length` entries along axis 2, and laid out as `binding` says; there may
    be none.
    """

    binding: Binding
    length: int
    arrays: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """`record` holds JSON values, opaque here. `caches` go by names like "target" (no "/")."""

    record: dict[str, Any]
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    caches: Mapping[str, StoredCache]


@dataclass(frozen=True)
class Info:
    """What a snapshot's header says: size in bytes, UTC time, numbers of tokens."""

    id: str
    bytes: int
    created: str
    prompt_tokens: int
    answer_tokens: int
    record: dict[str, Any]
    bindings: Mapping[str, Binding]


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    id: str
    owner: str
    facts: os.stat_result

    @property
    def bytes(self) -> int:
        return self.facts.st_size

    @property
    def written(self) -> float:
        """Seconds since the epoch."""
        return self.facts.st_mtime

    @property
    def open_to_others(self) -> bool:
        return stat.S_ISREG(self.facts.st_mode) and bool(self.facts.st_mode & 0o077)


def require_fit(what: str, stored: Binding, present: Binding) -> None:
    """Raise DerbyError for the first field in which `present` is not what the cache fits to."""
    for name in (f.name for f in fields(Binding)):
        old, new = getattr(stored, name), getattr(present, name)
        if old != new:
            raise DerbyError(
                f"The {what} cache was stored for {name} {old!r}, and this is {new!r}: "
                "load what it was stored with, or start afresh without it."
            )


def layout_of(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Count, dtype and shape of 4-D arrays, n for axis 2, such as "60 x float32 [1, 3, n, 64]"."""
    kinds = Counter(
        f"{a.dtype.name} [{', '.join('n' if i == 2 else str(n) for i, n in enumerate(a.shape))}]"
        for a in arrays.values()
    )
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))


def parse(data: bytes | memoryview, what: str = "This snapshot") -> Snapshot:
    """The snapshot in a file's content, its arrays read-only views of `data`.

    Raises DerbyError, which begins with `what`, for anything but the very bytes that were saved.
    """
    view = memoryview(data).cast("B").toreadonly()
    with refusing(f"{what} cannot be used", _DAMAGED):
        return _content(*read(view, len(view)))[1]


class SnapshotFolder:
    """Snapshots as files directly in `folder`, none larger than `max_bytes`, all within `limits`.

    A file is ID.safetensors, or ID-OWNER.safetensors if a visitor saved it: `owner` is a secret
    hash of who that was, 32 hexadecimal digits. Whoever has an id may load it. Only the operator
    can read the files.
    """

    def __init__(self, folder: Path, limits: Limits = PRIVATE, max_bytes: int = 4 * 2**30) -> None:
        self.folder = folder
        self.limits = limits
        self.max_bytes = max_bytes

    def save(self, snapshot: Snapshot, owner: str = "") -> str:
        """Write a snapshot, whole or not at all, and return its id.

        Removes what is too old first. Raises DerbyError, also if the owner keeps too many snapshots
        or all of them would take too much room.
        """
        with refusing("This state cannot be saved", "correct it and save again."):
            header, arrays = _render(snapshot)
            size = len(header) + sum(a.nbytes for a in arrays)
            # What load would refuse must not be written.
            _content(*read(memoryview(header), size))
        if size > self.max_bytes:
            raise _too_large("This state", size, self.max_bytes)
        self.tidy()
        self._require_quota(owner, size)
        name = secrets.token_hex(8)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with suppress(PermissionError):  # it may be another user's
                self.folder.chmod(0o700)
            write_file(self.folder / _file_name(name, owner), [header, *arrays])
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "make room in" if full else "check the permissions of"
            raise DerbyError(
                f"Cannot save a snapshot of {size} bytes ({error.strerror}): {remedy} the cache "
                "folder, or set DECODE_DERBY_CACHE to another one.",
                self.folder,
            ) from error
        return name

    def _require_quota(self, owner: str, size: int) -> None:
        """Raise DerbyError unless this owner may save so many bytes more."""
        kept, limits = list(self._files()), self.limits
        own = sum(file.owner == owner for file in kept)
        if own >= limits.snapshots:
            raise DerbyError(
                f"You keep {own} snapshots, and the limit is {limits.snapshots}: "
                + ("delete one, then save again." if own else "none can be saved here.")
            )
        total = sum(file.bytes for file in kept)
        if total + size > limits.snapshot_bytes:
            raise DerbyError(
                f"This state takes {size:,} bytes beside {total:,} of other snapshots, and the "
                f"limit is {limits.snapshot_bytes:,} for all: delete one, or save a shorter text."
            )

    def tidy(self) -> None:
        """Remove visitors' snapshots that are too old, and what writers that died left behind;
        close the files that earlier versions left open to others. What cannot be is left as it is.
        """
        now = time.time()
        oldest = now - self.limits.snapshot_hours * 3600
        with suppress(OSError, DerbyError):
            for path in self.folder.glob("*.partial"):
                if path.lstat().st_mtime < now - ABANDONED:
                    path.unlink()
            for file in self._files():
                if file.owner and file.written < oldest:
                    file.path.unlink()
                elif file.open_to_others:
                    file.path.chmod(0o600)
            if self.folder.is_dir():
                self.folder.chmod(0o700)

    def load(self, name: str) -> Snapshot:
        """The snapshot of an id, arrays read-only. Raises DerbyError if missing or damaged."""
        with self._open(name) as (file, size):
            # First, so that a sparse file, say, is refused before memory is taken for it.
            self._read_header(name, file, size)
            file.seek(0)
            # Unlike bytes, NumPy's large blocks sit in huge pages: a quarter of the time.
            block = np.empty(size, np.uint8)
            count = file.readinto(block.data)
        return parse(block[:count].data, f"Snapshot {name}")

    def info(self, name: str) -> Info:
        """What the header tells; damaged arrays go unnoticed. Raises DerbyError like load."""
        with self._open(name) as (file, size):
            created, found = self._read_header(name, file, size)
        bindings = {key: cache.binding for key, cache in found.caches.items()}
        counts = len(found.prompt), len(found.answer)
        return Info(name, size, created, *counts, found.record, bindings)

    def remove(self, name: str) -> None:
        """Delete a snapshot, damaged or not. Raises DerbyError if there is none."""
        try:
            self._path(name).unlink()
        except FileNotFoundError:
            raise _missing(name) from None
        except OSError as error:
            raise _unusable("remove", name, error) from error

    def remove_own(self, name: str, owner: str) -> None:
        """Delete a snapshot that this owner saved. Raises DerbyError if there is none."""
        if not any(file.id == name and file.owner == owner for file in self._files()):
            raise DerbyError(
                f"You saved no snapshot {str(name)[:40]!r} in this browser: choose one of your own."
            )
        self.remove(name)

    def list(self, owner: str | None = None) -> builtins.list[Info]:
        """All that info can tell of, or only what this owner saved, newest first.

        An absent folder holds none. Raises DerbyError if the folder cannot be read.
        """
        found: list[Info] = []
        for file in self._files():
            if owner in (None, file.owner):
                with suppress(DerbyError):
                    found.append(self.info(file.id))
        return sorted(found, key=lambda info: (info.created, info.id), reverse=True)

    def _files(self) -> Iterator[_File]:
        """Whatever has a snapshot's name. Raises DerbyError if the folder cannot be read."""
        try:
            for path in self.folder.iterdir():
                if (match := _NAME.fullmatch(path.name)) is not None:
                    with suppress(FileNotFoundError):  # another process may remove it meanwhile
                        yield _File(path, match[1], match[2] or "", path.lstat())
        except FileNotFoundError:
            return
        except OSError as error:
            raise DerbyError(
                f"The folder of the snapshots cannot be read ({error.strerror}): check it and its "
                "permissions.",
                self.folder,
            ) from error

    def _path(self, name: str) -> Path:
        if not is_snapshot_id(name):
            raise _missing(name)
        paths = (file.path for file in self._files() if file.id == name)
        return next(paths, self.folder / _file_name(name, ""))

    def _read_header(self, name: str, file: BufferedReader, size: int) -> tuple[str, Snapshot]:
        header = read_header(file)
        with refusing(f"Snapshot {name} cannot be used", _DAMAGED):
            return _content(*read(header, size))

    @contextmanager
    def _open(self, name: str) -> Iterator[tuple[BufferedReader, int]]:
        """A regular file of bearable size, and that size in bytes; links are not followed."""
        path = self._path(name)
        try:
            with open_file(path) as file:
                facts = os.fstat(file.fileno())
                if not stat.S_ISREG(facts.st_mode):
                    raise DerbyError(f"Snapshot {name} is not a file: remove it.", path)
                if facts.st_size > self.max_bytes:
                    raise _too_large(f"Snapshot {name}", facts.st_size, self.max_bytes)
                yield file, facts.st_size
        except FileNotFoundError:
            raise _missing(name) from None
        except OSError as error:
            raise _unusable("read", name, error) from error
        except MemoryError as error:
            raise DerbyError(f"Snapshot {name} does not fit into memory: make room.") from error


def default_folder(limits: Limits = PRIVATE) -> SnapshotFolder:
    """$DECODE_DERBY_SNAPSHOTS, which machines may share, or a folder beside prepared models."""
    chosen = os.environ.get(VARIABLE)
    folder = Path(chosen).expanduser() if chosen else cache_dir() / "snapshots"
    return SnapshotFolder(folder, limits)


def _render(snapshot: Snapshot) -> tuple[bytes, list[memoryview]]:
    """A snapshot's header, and the bytes of its arrays in the order they follow it."""
    prompt, answer = ([operator.index(t) for t in x] for x in (snapshot.prompt, snapshot.answer))
    content = {
        "created": datetime.now(UTC).isoformat(timespec="microseconds"),
        "record": snapshot.record,
        "prompt": prompt,
        "answer": answer,
        "tokens": hash_tokens(prompt, answer),
        "caches": {
            name: {"binding": asdict(cache.binding), "length": operator.index(cache.length)}
            for name, cache in snapshot.caches.items()
        },
    }
    arrays = {
        f"{cache}/{key}": array
        for cache, stored in snapshot.caches.items()
        for key, array in stored.arrays.items()
    }
    return render(content, arrays)


def _content(content: dict[str, Any], arrays: Arrays) -> tuple[str, Snapshot]:
    """Creation time and snapshot from the header's JSON string, checked against the arrays."""
    match content:
        case {
            "created": str(created),
            "record": dict(record),
            "prompt": list(prompt),
            "answer": list(answer),
            "tokens": str(token_hash),
            "caches": dict(caches),
        } if _CREATED.fullmatch(created):
            pass
        case _:
            raise ValueError("its content has fields missing or of the wrong type")
    for token in (*prompt, *answer):
        if not is_whole(token, 0):
            raise ValueError(f"token id {token!r} is not an integer from 0 to {2**31 - 1}")
    if token_hash != hash_tokens(prompt, answer):
        raise ValueError("its tokens are not those that were saved")
    if not arrays.keys() <= caches.keys():
        raise ValueError(f"it has arrays of {sorted(arrays)}, and caches {sorted(caches)}")
    total = len(prompt) + len(answer)
    stored = {name: _cache(name, x, arrays.get(name, {}), total) for name, x in caches.items()}
    return created, Snapshot(record, tuple(prompt), tuple(answer), stored)


def _cache(name: str, value: object, arrays: dict[str, NDArray[Any]], total: int) -> StoredCache:
    """One cache, checked against its arrays and the text's number of tokens."""
    match value:
        case {"length": length, "binding": dict(described)} if (
            is_whole(length, 0) and "/" not in name
        ):
            binding = Binding(**described)
        case _:
            raise ValueError(f"cache {name!r} has a field missing or of the wrong type")
    if not all(isinstance(text, str) for text in described.values()):
        raise ValueError(f"cache {name!r} is bound to something other than text")
    if length > total:
        raise ValueError(f"cache {name!r} is of {length} tokens, and the text has {total}")
    for key, array in arrays.items():
        if array.shape[2] != length:
            raise ValueError(f"array {key!r} is of {array.shape[2]} tokens, its cache of {length}")
    if layout_of(arrays) != binding.layout:
        raise ValueError(f"cache {name!r} has {layout_of(arrays)!r}, not {binding.layout!r}")
    return StoredCache(binding, length, dict(sorted(arrays.items())))


def _file_name(name: str, owner: str) -> str:
    return f"{name}-{owner}.safetensors" if owner else f"{name}.safetensors"


def _missing(name: str) -> DerbyError:
    return DerbyError(
        f"There is no snapshot {str(name)[:40]!r}: give the id of 16 hexadecimal digits that "
        "saving a column showed."
    )


def _unusable(verb: str, name: str, error: OSError) -> DerbyError:
    return DerbyError(
        f"Cannot {verb} snapshot {name} ({error.strerror}): check the file and its permissions."
    )


def _too_large(what: str, size: int, limit: int) -> DerbyError:
    return DerbyError(f"{what} takes {size} bytes, and the limit is {limit}: use a shorter text.")
