"""Folders that take minutes to make: prepared once, verified by hash, put in place atomically."""

import fnmatch
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from backend.errors import NO_ROOM, NOT_ALLOWED, DerbyError, chain
from backend.models.cache_folder import cache_dir
from backend.models.digests import sha256_of

MANIFEST = "manifest.json"

#: How the name of a folder ends that is being built.
PARTIAL = ".partial"

#: What the Hub's client calls a file that is not whole yet.
FETCHING = "*.incomplete"

#: How libraries say that they could not write: safetensors, pip and others; OpenVINO's streams.
FULL = ("No space left on device", "os error 28", "Disk quota exceeded", "basic_ios::clear")

#: A build that failed with fewer bytes free than this failed for want of them.
NEARLY_FULL = 1 << 20

#: Partial folders that threads of this process are building, and the bytes that each may take.
_building: dict[Path, int] = {}


@dataclass(frozen=True, slots=True)
class Building:
    """A folder that is being built: bytes written so far, and what it needs at most; 0: unknown."""

    written: int
    needs: int


def building() -> tuple[Building, ...]:
    """What threads of this process are building. Files in folders of their own are on the way to
    something else, and left out, but for those that the Hub's client is fetching.
    """
    return tuple(
        Building(sum(map(_bytes, _written(partial))), needs)
        for partial, needs in tuple(_building.items())
    )


def _written(partial: Path) -> Iterator[Path]:
    """Its own files and those being fetched; `rglob` raises if a folder goes while it looks."""
    for folder, _, names in os.walk(partial):
        for name in names if Path(folder) == partial else fnmatch.filter(names, FETCHING):
            yield Path(folder, name)


def _bytes(path: Path) -> int:
    with suppress(OSError):  # it has gone meanwhile
        facts = path.stat()
        return facts.st_size if stat.S_ISREG(facts.st_mode) else 0
    return 0


def volume(folder: Path = Path("/data")) -> Path | None:
    """Where prepared folders may live on a volume that a Space has mounted at `folder`; None if it
    has none, or one that cannot hold them: some keep no locks, or rename no folders.
    """
    from filelock import FileLock

    if not folder.is_dir():
        return None
    place = folder / "decode-derby"
    trial = place / f"trial-{os.getpid()}{PARTIAL}"
    try:
        trial.mkdir(parents=True)
        with FileLock(_lock(trial), timeout=0):
            (trial / "file").write_bytes(b"1")
            renamed = trial.rename(trial.with_suffix(""))
            (renamed / "file").unlink()
            renamed.rmdir()
        _lock(trial).unlink(missing_ok=True)
    except (OSError, NotImplementedError):
        return None
    return place


def prepared(
    name: str,
    recipe: str,
    build: Callable[[Path], None],
    needs: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> Path:
    """The folder `name` of the cache, made by `build(empty folder)` unless it is there intact.

    `recipe` says how the content is made; a folder of another recipe, or one with a file missing,
    added or damaged, is removed and built anew. The build happens in a folder of its own that is
    renamed into place once complete, under a lock, so neither a crash nor a second process ever
    leaves something half-made behind. What killed processes left of other builds is removed.

    `needs` is how many bytes of disk the build takes at most; `say` is told if it has to wait for
    another process. Raises DerbyError if the disk has less, or if the cache cannot be written.
    """
    folder = cache_dir() / name
    remove_partials()
    if intact(folder, recipe):
        return folder
    with _locked(folder, say):
        # Whoever held the lock before may just have built it.
        if not intact(folder, recipe):
            with _sufficient_disk(name, needs):
                _rebuild(folder, recipe, build, needs)
    return folder


def remove_partials() -> None:
    """Remove what builds left in the cache that were killed; those of others that run stay."""
    from filelock import FileLock, Timeout

    for partial in cache_dir().glob(f"*{PARTIAL}"):
        with suppress(OSError, Timeout), FileLock(_lock(partial), timeout=0):
            _remove(partial)


def abandon_builds() -> None:
    """Remove what this process is building, which is about to end: threads may be in the middle of
    it, in native code that nothing else can end.
    """
    for partial in tuple(_building):
        shutil.rmtree(partial, ignore_errors=True)


def remove_prepared(folder: Path) -> None:
    """Remove a folder of the cache. Raises DerbyError if it is just being made, or not ours."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(_lock(folder), timeout=0):
            _remove(folder)
    except Timeout as error:
        raise DerbyError(
            f"{folder.name!r} is being prepared right now: try again later."
        ) from error
    except OSError as error:
        raise _forbidden(error) from error


def _lock(folder: Path) -> Path:
    """The lock of a prepared folder, or of its partial one."""
    return folder.with_name(f"{folder.name.removesuffix(PARTIAL)}.lock")


@contextmanager
def _locked(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of a folder; `say` is told if another process holds it now. Raises DerbyError
    if there can be no such lock in the cache.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(_lock(folder))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(f"Waiting for another process that is preparing {folder.name!r}...")
            lock.acquire()
    except (FileExistsError, NotADirectoryError) as error:
        raise DerbyError(
            "The cache folder cannot be created because a file is in its place or above it: remove "
            "the file, or set DECODE_DERBY_CACHE to a folder.",
            folder.parent,
        ) from error
    except OSError as error:
        raise (_full(folder.name, 0) if _says_full(error) else _forbidden(error)) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _sufficient_disk(name: str, needs: int) -> Iterator[None]:
    """Refuse a build that the disk cannot hold, and have it said if the disk ran full on the way:
    libraries tell that in ways of their own, or only fail.
    """
    if _free() < needs:
        raise _full(name, needs)
    try:
        yield
    except Exception as error:
        ran_full = not isinstance(error, DerbyError) and _free() < max(needs, NEARLY_FULL)
        if ran_full or any(map(_says_full, chain(error))):
            raise _full(name, needs) from error
        if isinstance(error, OSError) and error.errno in NOT_ALLOWED:
            raise _forbidden(error) from error
        raise


def _free() -> int:
    """Bytes that this user may still write to the disk of the cache, whether or not that exists."""
    cache = cache_dir()
    return shutil.disk_usage(next(p for p in (cache, *cache.parents) if p.is_dir())).free


def _says_full(error: BaseException) -> bool:
    full = isinstance(error, OSError) and error.errno in NO_ROOM
    return full or any(words in str(error) for words in FULL)


def _full(name: str, needs: int) -> DerbyError:
    wanted = f"{needs / 1e6:,.0f} MB" if needs else "more than there is"
    return DerbyError(
        f"The disk or this user's quota is full: {name!r} needs {wanted}, and {_free() / 1e6:,.0f} "
        "MB are free in the cache folder; make room there, or set DECODE_DERBY_CACHE to a folder "
        "on a larger disk.",
        cache_dir(),
    )


def _forbidden(error: OSError) -> DerbyError:
    return DerbyError(
        f"The cache folder cannot be written by this user ({error.strerror}): allow it, or set "
        "DECODE_DERBY_CACHE to a folder of your own.",
        cache_dir(),
    )


def _rebuild(folder: Path, recipe: str, build: Callable[[Path], None], needs: int) -> None:
    """Replace `folder` by a fresh build. The caller holds the lock."""
    partial = folder.with_name(f"{folder.name}{PARTIAL}")
    _remove(partial)
    _building[partial] = needs
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
    finally:
        _building.pop(partial, None)


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


def intact(folder: Path, recipe: str) -> bool:
    """Whether a folder is there as it was built, each byte of it."""
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
