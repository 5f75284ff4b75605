"""Prefixes as files in memory, so that they outlive the worker process that computed them."""

import logging
import os
import secrets
import shutil
import tempfile
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from backend.kvcache.cache_file import open_file, text_of, write_file
from backend.kvcache.prefix_cache import Entry, Held, Memory, Store, Tokens
from backend.kvcache.sources import Visitor
from backend.models.prepared import PARTIAL
from backend.types import Arrays

if TYPE_CHECKING:
    from filelock import BaseFileLock

log = logging.getLogger(__name__)

#: A file system in memory, on Linux.
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (a folder of our own is made in it)

_PREFIX = "decode-derby-prefixes-"


class PrefixFolder:
    """A folder that only its user can read, for the prefixes of one process and its workers; gone
    with it, or once another one is made after it was killed.

    In memory if that has `budget` bytes left, or else with the temporary files. `path` is None if
    there can be none.
    """

    def __init__(self, budget: int) -> None:
        from filelock import FileLock

        self.path: Path | None = None
        place = _place(budget)
        try:
            _remove_abandoned(place)
            path = place / f"{_PREFIX}{secrets.token_hex(8)}"
            lock = FileLock(_lock_of(path))
            lock.acquire(blocking=False)
            path.mkdir(mode=0o700)
            path.chmod(0o700)
        except OSError:
            log.warning("prefixes will not outlive a worker: no folder for them", exc_info=True)
            return
        self.path = path
        self._remove = weakref.finalize(self, _remove, path, lock)

    def remove(self) -> None:
        """Remove it with all that is in it; what workers have mapped stays valid."""
        if self.path is not None:
            self._remove()


def _place(budget: int) -> Path:
    with suppress(OSError):
        if shutil.disk_usage(SHARED_MEMORY).free >= budget and os.access(SHARED_MEMORY, os.W_OK):
            return SHARED_MEMORY
    return Path(tempfile.gettempdir())


def _lock_of(path: Path) -> Path:
    """The file that the owner of a folder has locked, from before there is a folder."""
    return path.with_name(f"{path.name}.lock")


def _remove_abandoned(place: Path) -> None:
    """Remove the folders of processes that were killed."""
    from filelock import FileLock, Timeout

    for path in place.glob(f"{_PREFIX}*"):
        if path.suffix == ".lock" or path.is_symlink():
            continue
        with suppress(Timeout, OSError):  # its owner lives, or is another user
            lock = FileLock(_lock_of(path))
            lock.acquire(blocking=False)
            _remove(path, lock)


def _remove(path: Path, lock: "BaseFileLock") -> None:
    shutil.rmtree(path, ignore_errors=True)
    lock.release()
    _lock_of(path).unlink(missing_ok=True)


def store_in(folder: Path | None) -> Store:
    """A store of prefixes in a folder of `PrefixFolder`; in this process if there is none."""
    return Memory() if folder is None or not folder.is_dir() else PrefixFiles(folder)


class PrefixFiles:
    """Keeps each entry in a file of `folder`. One process at a time writes there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(
        self, scope: Visitor, model: str, tokens: Tokens, arrays: Arrays, *, whole: bool
    ) -> Held:
        path = self._folder / f"{secrets.token_hex(8)}.safetensors"
        size = sum(array.nbytes for array in arrays.values())
        content = {
            "visitor": scope.id,
            "model": model,
            "tokens": tokens.tolist(),
            "bytes": size,
            "whole": whole,
        }
        try:
            write_file(path, text_of(content), arrays, durable=False)
        except (OSError, ValueError):
            log.warning("a prefix is kept in the worker alone", exc_info=True)
            return Memory().keep(scope, model, tokens, arrays, whole=whole)
        held = InFile(path)
        held.used()  # the system's own clock for files ticks too slowly to tell which came last
        return held

    def found(self) -> Sequence[Entry]:
        """Entries of an earlier worker. What it was writing when it died is removed."""
        entries: list[tuple[int, Entry]] = []
        for path in list(self._folder.iterdir()):
            try:
                entries.append((path.stat().st_mtime_ns, _entry(path)))
            except (OSError, ValueError, TypeError, KeyError) as error:
                log.info("a prefix is removed: %s", error)
                InFile(path).drop()
        return [entry for _, entry in sorted(entries, key=lambda each: each[0])]


class InFile:
    """Arrays in a file, which is mapped into memory only while they are read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def rows(self, length: int | None) -> Arrays:
        with open_file(self._path) as file:
            return file.arrays() if length is None else file.rows(length)

    def used(self) -> None:
        now = time.time_ns()
        with suppress(OSError):
            os.utime(self._path, ns=(now, now))

    def drop(self) -> None:
        with suppress(OSError):
            self._path.unlink()


def _entry(path: Path) -> Entry:
    """What a file's header tells. Raises OSError, ValueError, TypeError or KeyError if it is not a
    whole prefix.
    """
    if path.suffix == PARTIAL:
        raise ValueError("it is partial")
    with open_file(path) as file:
        content = file.content
    tokens = np.array(content["tokens"], np.int64)
    size = content["bytes"] + tokens.nbytes
    visitor, whole = Visitor(content["visitor"]), content["whole"]
    return Entry(visitor, content["model"], tokens, size, InFile(path), whole)
