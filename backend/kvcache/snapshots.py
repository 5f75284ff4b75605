"""A column's state in a file: what was asked, its tokens, and the KV caches to go on from.

A file is either exactly what was saved or a DerbyError; `cache_file` says how it is laid out.
"""

import builtins
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
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from backend.errors import DerbyError
from backend.kvcache.cache_file import CacheFile, digest_of, open_file, text_of, write_file
from backend.limits import PRIVATE, Limits
from backend.models.cache_folder import cache_dir
from backend.models.prepared import PARTIAL
from backend.types import Arrays

#: The folder of snapshots, for machines that share one.
VARIABLE = "DECODE_DERBY_SNAPSHOTS"

#: Seconds after which a partial file is nobody's any more.
ABANDONED = 3600.0

_NAME = re.compile(r"([0-9a-f]{16})(?:-([0-9a-f]{32}))?\.safetensors")


@dataclass(frozen=True, slots=True)
class Binding:
    """What a KV cache fits to. `layout` is as layout_of writes it, "" for no arrays."""

    fingerprint: str
    engine: str
    precision: str
    layout: str


@dataclass(frozen=True, eq=False)
class StoredCache:
    """The KV cache of a text's first `length` tokens: 4-D arrays with `length` entries along
    axis 2, laid out as `binding` says; there may be none.
    """

    binding: Binding
    length: int
    arrays: Arrays


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


def require_fit(what: str, stored: Binding, present: Binding) -> None:
    """Raise DerbyError for the first field in which `present` is not what the cache fits to."""
    for name in (f.name for f in fields(Binding)):
        old, new = getattr(stored, name), getattr(present, name)
        if old != new:
            raise DerbyError(
                f"The {what} cache was stored for {name} {old!r}, and this is {new!r}: "
                "load what it was stored with, or start without it."
            )


def layout_of(arrays: Arrays) -> str:
    """Count, dtype and shape of 4-D arrays, n for axis 2, such as "60 x float32 [1, 3, n, 64]"."""
    kinds = Counter(
        f"{a.dtype.name} [{', '.join('n' if i == 2 else str(n) for i, n in enumerate(a.shape))}]"
        for a in arrays.values()
    )
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))


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
        arrays = {
            f"{cache}/{name}": array
            for cache, stored in snapshot.caches.items()
            for name, array in stored.arrays.items()
        }
        try:
            text = text_of(_content_of(snapshot, arrays))
        except (ValueError, TypeError, RecursionError) as error:
            raise DerbyError(f"This state cannot be saved: {error}.") from error
        size = len(text) + sum(array.nbytes for array in arrays.values())
        if size > self.max_bytes:
            raise _too_large("This state", size, self.max_bytes)
        self.tidy()
        self._require_quota(owner, size)
        name = secrets.token_hex(8)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with suppress(PermissionError):  # it may be another user's
                self.folder.chmod(0o700)
            write_file(self.folder / _file_name(name, owner), text, arrays)
        except OSError as error:
            raise DerbyError(
                f"Cannot save a snapshot of {size:,} bytes ({error.strerror or error}): make room "
                "in the cache folder, check its permissions, or set DECODE_DERBY_CACHE to another "
                "one.",
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
        """Remove visitors' snapshots that are too old, and what writers that died left behind. What
        cannot be is left as it is.
        """
        now = time.time()
        oldest = now - self.limits.snapshot_hours * 3600
        with suppress(OSError, DerbyError):
            for path in self.folder.glob(f"*{PARTIAL}"):
                if path.lstat().st_mtime < now - ABANDONED:
                    path.unlink()
            for file in self._files():
                if file.owner and file.written < oldest:
                    file.path.unlink()
            if self.folder.is_dir():
                self.folder.chmod(0o700)  # earlier versions left it open to others

    def load(self, name: str) -> Snapshot:
        """The snapshot of an id. Raises DerbyError if missing or damaged."""
        with self._opened(name) as (_, file):
            return _snapshot(file)

    def info(self, name: str) -> Info:
        """What the header tells; damaged arrays go unnoticed. Raises DerbyError like load."""
        with self._opened(name) as (size, file):
            found = file.content
            bindings = {key: Binding(**cache["binding"]) for key, cache in found["caches"].items()}
            counts = len(found["prompt"]), len(found["answer"])
            return Info(name, size, found["created"], *counts, found["record"], bindings)

    def remove(self, name: str) -> None:
        """Delete a snapshot, damaged or not. Raises DerbyError if there is none."""
        try:
            self._path(name).unlink()
        except OSError as error:
            raise _unusable("remove", name, error) from error

    def remove_own(self, name: str, owner: str) -> None:
        """Delete a snapshot that this owner saved. Raises DerbyError if there is none."""
        if not any(file.id == name and file.owner == owner for file in self._files()):
            raise DerbyError(
                f"Snapshot {str(name)[:40]!r} was not saved in this browser: choose one that was."
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
        """Raises DerbyError if there is no such snapshot."""
        for file in self._files():
            if file.id == name:
                return file.path
        raise DerbyError(
            f"There is no snapshot {str(name)[:40]!r}: give the id of 16 hexadecimal digits that "
            "saving a column showed."
        )

    @contextmanager
    def _opened(self, name: str) -> Iterator[tuple[int, CacheFile]]:
        """A regular file of bearable size, and that size in bytes; links are not followed. What is
        found to be wrong with it meanwhile is a DerbyError.
        """
        path = self._path(name)
        try:
            facts = path.lstat()
            if not stat.S_ISREG(facts.st_mode):
                raise DerbyError(f"Snapshot {name} is not a file: remove it.", path)
            if facts.st_size > self.max_bytes:
                raise _too_large(f"Snapshot {name}", facts.st_size, self.max_bytes)
            with open_file(path) as file:
                yield facts.st_size, file
        except OSError as error:
            raise _unusable("read", name, error) from error
        except (ValueError, TypeError, KeyError) as error:
            # A name in a forged file may be megabytes long.
            raise DerbyError(
                f"Snapshot {name} cannot be used: {str(error)[:300]}; remove it and save it again."
            ) from error


def default_folder(limits: Limits = PRIVATE) -> SnapshotFolder:
    """$DECODE_DERBY_SNAPSHOTS, which machines may share, or a folder beside prepared models."""
    chosen = os.environ.get(VARIABLE)
    folder = Path(chosen).expanduser() if chosen else cache_dir() / "snapshots"
    return SnapshotFolder(folder, limits)


def _content_of(snapshot: Snapshot, arrays: Arrays) -> dict[str, Any]:
    """All of a snapshot but its arrays, with their digest."""
    return {
        "created": datetime.now(UTC).isoformat(timespec="microseconds"),
        "record": snapshot.record,
        "prompt": list(map(operator.index, snapshot.prompt)),
        "answer": list(map(operator.index, snapshot.answer)),
        "caches": {
            name: {"binding": asdict(cache.binding), "length": cache.length}
            for name, cache in snapshot.caches.items()
        },
        "arrays": digest_of(arrays),
    }


def _snapshot(file: CacheFile) -> Snapshot:
    """What a file holds. Raises ValueError, TypeError or KeyError if it is damaged."""
    content, arrays = file.content, file.arrays()
    if digest_of(arrays) != content["arrays"]:
        raise ValueError("its arrays are not those that were saved")
    by_cache: dict[str, dict[str, NDArray[Any]]] = {name: {} for name in content["caches"]}
    for path, array in arrays.items():
        cache, _, name = path.partition("/")
        by_cache[cache][name] = array
    caches = {
        name: StoredCache(Binding(**cache["binding"]), cache["length"], by_cache[name])
        for name, cache in content["caches"].items()
    }
    return Snapshot(content["record"], tuple(content["prompt"]), tuple(content["answer"]), caches)


def _file_name(name: str, owner: str) -> str:
    return f"{name}-{owner}.safetensors" if owner else f"{name}.safetensors"


def _unusable(verb: str, name: str, error: OSError) -> DerbyError:
    reason = error.strerror or type(error).__name__
    return DerbyError(
        f"Cannot {verb} snapshot {name} ({reason}): check the file and its permissions."
    )


def _too_large(what: str, size: int, limit: int) -> DerbyError:
    return DerbyError(
        f"{what} takes {size:,} bytes, and the limit is {limit:,}: use a shorter text."
    )
