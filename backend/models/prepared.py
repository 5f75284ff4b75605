"""Folders that take minutes to make: prepared once, verified by hash, put in place atomically."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from backend.errors import DerbyError

MANIFEST = "manifest.json"


def cache_dir() -> Path:
    """Where prepared folders live: $DECODE_DERBY_CACHE, or the user's cache folder."""
    import platformdirs

    chosen = os.environ.get("DECODE_DERBY_CACHE")
    path = Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("decode-derby")
    return path.absolute()


def prepared(name: str, recipe: str, build: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache, made by `build(empty folder)` unless it is there intact.

    `recipe` says how the content is made; a folder of another recipe, or one with a file missing,
    added or damaged, is removed and built anew. The build happens in a folder of its own that is
    renamed into place once complete, under a lock, so neither a crash nor a second process ever
    leaves something half-made behind. Raises DerbyError if the cache cannot be written.
    """
    from filelock import FileLock

    folder = cache_dir() / name
    if _intact(folder, recipe):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f"{name}.lock"):
            # Whoever held the lock before may just have built it.
            if not _intact(folder, recipe):
                _rebuild(folder, recipe, build)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        raise DerbyError(
            f"Cannot prepare {name!r} in the cache folder {folder.parent} ({error.strerror}): "
            "make room there, or set DECODE_DERBY_CACHE to a folder with more."
        ) from error
    return folder


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file, computed once per process while its size and time stay the same."""
    facts = path.stat()
    return _sha256(path, facts.st_ino, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=4096)
def _sha256(path: Path, inode: int, size: int, mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256", _bufsize=1 << 22).hexdigest()


def _rebuild(folder: Path, recipe: str, build: Callable[[Path], None]) -> None:
    """Replace `folder` by a fresh build. The caller holds the lock."""
    partial = folder.with_name(f"{folder.name}.partial")
    _remove(partial)
    partial.mkdir()
    try:
        build(partial)
        manifest = partial / MANIFEST
        manifest.write_text(json.dumps({"recipe": recipe, "files": _contents(partial)}, indent=1))
        for path in (*partial.rglob("*"), partial):
            flush(path)
        _remove(folder)
        partial.rename(folder)
        flush(folder.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _contents(folder: Path) -> dict[str, dict[str, str | int]]:
    """Size in bytes and SHA-256 of every file but the manifest, by path within the folder."""
    files = sorted(p for p in folder.rglob("*") if not p.is_dir() and p != folder / MANIFEST)
    return {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": sha256_of(path),
        }
        for path in files
    }


def _intact(folder: Path, recipe: str) -> bool:
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        return manifest == {"recipe": recipe, "files": _contents(folder)}
    except (OSError, ValueError):
        return False


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def flush(path: Path) -> None:
    """Have the disk hold what was written to a file or folder."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open a folder for this
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
