"""Training's files: each there whole or not at all, and one writer to a folder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from backend.errors import DerbyError


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write that appears as `path` once it is complete and on disk."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make `folder` if need be and keep other runs out. Raises DerbyError if one is in there."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / "lock", timeout=0, is_singleton=True)  # one, so that calls may nest
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise DerbyError(
            f"Another run is training in {str(folder)!r}: wait for it, or choose another folder."
        ) from error
    except OSError as error:
        raise DerbyError(
            f"Cannot train in {str(folder)!r} ({error.strerror}): choose another folder."
        ) from error
    try:
        yield
    finally:
        lock.release()
