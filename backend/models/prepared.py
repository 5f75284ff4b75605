"""The cache folder, and what takes long to make in it: each folder made once, in place at once."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from backend.errors import NO_ROOM, NOT_ALLOWED, DerbyError

#: The environment variable that names another cache folder.
CACHE = "DECODE_DERBY_CACHE"

#: The file that says how a folder was made.
KEY = "key.txt"

#: A build that failed with fewer bytes free than this failed for want of them: libraries tell that
#: in ways of their own.
NEARLY_FULL = 1 << 20

Say = Callable[[str], None]


def cache_dir() -> Path:
    """Where prepared folders and measured costs live, absolute."""
    import platformdirs

    named = os.environ.get(CACHE)
    path = Path(named).expanduser() if named else platformdirs.user_cache_path("decode-derby")
    return path.absolute()


def versions(*packages: str) -> str:
    """The installed versions of these packages, for a key: others may write something else."""
    return ", ".join(f"{package} {version(package)}" for package in packages)


def is_prepared(name: str, key: str) -> bool:
    """Whether the cache has the folder `name`, made as `key` says."""
    try:
        return (cache_dir() / name / KEY).read_text(encoding="utf-8") == key
    except OSError:
        return False


def prepared(name: str, key: str, build: Callable[[Path], None], say: Say = lambda _: None) -> Path:
    """The folder `name` of the cache, made by `build(empty folder)` unless it is there as `key`
    (recipe, sources, versions) says. It is renamed once complete, under a lock: neither a killed
    process nor two at once leave it half-made. Raises DerbyError where the disk is full or the
    cache cannot be written, and whatever the build raises.
    """
    folder = cache_dir() / name
    if is_prepared(name, key):
        return folder
    partial = folder.with_name(f"{name}.partial")
    with _refusals(), _lock(folder, say):
        if is_prepared(name, key):  # by another process, meanwhile
            return folder
        shutil.rmtree(partial, ignore_errors=True)  # a killed process's
        partial.mkdir()
        try:
            build(partial)
            (partial / KEY).write_text(key, encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(partial, folder)  # noqa: PTH105 (it never lands inside the other)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


@contextmanager
def _lock(folder: Path, say: Say) -> Iterator[None]:
    from filelock import FileLock, Timeout

    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f"{folder.name}.lock"))
    try:
        locked = lock.acquire(timeout=0)
    except Timeout:
        say(f"Waiting for another process that is preparing {folder.name!r}...")
        locked = lock.acquire()
    with locked:
        yield


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise DerbyError where the cache cannot be written, or the disk ran full."""
    try:
        yield
    except DerbyError:
        raise
    except Exception as error:
        folder, number = cache_dir(), getattr(error, "errno", None)
        parent = next(p for p in (folder, *folder.parents) if p.is_dir())
        full = number in NO_ROOM or shutil.disk_usage(parent).free < NEARLY_FULL
        if full or number in NOT_ALLOWED or isinstance(error, FileExistsError | NotADirectoryError):
            why = "the disk is full" if full else str(getattr(error, "strerror", ""))
            raise DerbyError(
                f"The cache folder cannot be written ({why}): make room there, allow it, or set "
                f"{CACHE} to another folder."
            ) from error
        raise
