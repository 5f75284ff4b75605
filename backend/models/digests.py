"""SHA-256 of files, computed again only if they may have changed."""

import hashlib
import logging
import os
from pathlib import Path
from time import time

from backend.models.cache_folder import cache_dir

log = logging.getLogger(__name__)

#: Bytes of a file whose digest is kept for later processes.
LARGE = 1 << 25

#: Seconds for which it is kept: disks fail, too.
KEPT = 7 * 24 * 3600.0

#: Seconds for which a file must have been at rest before it was read: of changes that are nearer to
#: one another, all may have the same time.
AT_REST = 0.05

#: What this process computed or found: by device and inode, the file's state and its digest.
_known: dict[str, tuple[str, str]] = {}


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file, which may be moved: computed once per process, and of a large file
    once in a while, as long as its size and the times of its change stay the same. The second of
    those times, its inode's, cannot be set by anybody.
    """
    facts = path.stat()
    place = f"{facts.st_dev:x}-{facts.st_ino:x}"
    state = f"{facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns}"
    if _known.get(place, ("", ""))[0] != state:
        large, began = facts.st_size >= LARGE, time()
        digest = _kept(place, state) if large else ""
        if not digest:
            digest = _digest(path)
            if large and began > facts.st_ctime + AT_REST:
                _keep(place, state, digest)
        _known[place] = state, digest
    return _known[place][1]


def forget() -> None:
    """Know as little as a new process does."""
    _known.clear()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256", _bufsize=1 << 22).hexdigest()


def _note(place: str) -> Path:
    return cache_dir() / "digests" / place


def _kept(place: str, state: str) -> str:
    """The digest that was kept of a file in this state; "": none, or it is old or damaged."""
    note = _note(place)
    try:
        text, age = note.read_text(encoding="ascii"), time() - note.stat().st_mtime
    except (OSError, ValueError):
        return ""
    digest = text[:64]
    return digest if age < KEPT and text == _written(state, digest) else ""


def _keep(place: str, state: str, digest: str) -> None:
    """Keep it if the folder can be written."""
    note = _note(place)
    partial = note.with_name(f"{note.name}.{os.getpid()}")
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(_written(state, digest), encoding="ascii")
        partial.replace(note)
    except OSError as error:
        log.warning("the digest of a file could not be kept: %s", error)


def _written(state: str, digest: str) -> str:
    """A note: the digest, the state of the file, and a digest of both."""
    text = f"{digest} {state}"
    return f"{text} {hashlib.sha256(text.encode()).hexdigest()}"
