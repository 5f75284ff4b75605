"""Digests of files: computed again where a file may have changed, and only there."""

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from backend.models import digests
from backend.models.digests import sha256_of


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Which files were read, in a process that keeps digests of files of any size."""
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "LARGE", 0)
    monkeypatch.setattr(digests, "AT_REST", -1.0)
    compute, read = digests._digest, list[Path]()
    monkeypatch.setattr(digests, "_digest", lambda path: read.append(path) or compute(path))
    digests.forget()
    return read


def written(path: Path, content: bytes = b"weights") -> Path:
    path.write_bytes(content)
    return path


def test_a_file_is_read_once_also_by_later_processes_and_where_it_was_moved(
    tmp_path: Path, read: list[Path]
) -> None:
    """Each start of a model of 2.2 GB read 6.6 GB of files before anything else."""
    path = written(tmp_path / "a")
    for _ in range(3):
        assert sha256_of(path) == sha256(b"weights").hexdigest()
        digests.forget()
    moved = path.rename(tmp_path / "b")
    os.link(moved, tmp_path / "c")  # which changes its inode's time
    assert sha256_of(moved) == sha256_of(tmp_path / "c") == sha256(b"weights").hexdigest()
    assert read == [path, moved]


def same_size(path: Path) -> None:
    path.write_bytes(b"Weights")


def with_its_old_time(path: Path) -> None:
    facts = path.stat()
    path.write_bytes(b"Weights")
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def another_in_its_place(path: Path) -> None:
    facts = path.stat()
    other = written(path.with_suffix(".new"), b"Weights")
    os.utime(other, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("change", [same_size, with_its_old_time, another_in_its_place])
@pytest.mark.parametrize("later", [False, True])
def test_a_changed_file_is_read_again(
    *, change: Callable[[Path], None], later: bool, tmp_path: Path, read: list[Path]
) -> None:
    path = written(tmp_path / "a")
    sha256_of(path)
    change(path)
    if later:
        digests.forget()
    assert sha256_of(path) == sha256(b"Weights").hexdigest()
    assert read == [path, path]


def test_a_note_that_is_damaged_or_old_is_not_believed(tmp_path: Path, read: list[Path]) -> None:
    """A flipped bit in it would have a model converted again, or taken for another one."""
    path = written(tmp_path / "a")
    sha256_of(path)
    (note,) = (tmp_path / "cache" / "digests").iterdir()
    whole = note.read_bytes()
    for at in range(0, len(whole), 5):
        note.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        digests.forget()
        assert sha256_of(path) == sha256(b"weights").hexdigest()
    assert len(read) == 1 + len(range(0, len(whole), 5))
    os.utime(note, (0, 0))
    digests.forget()
    sha256_of(path)
    assert len(read) == 2 + len(range(0, len(whole), 5))


def test_nothing_is_kept_of_small_files_nor_of_those_just_written(
    tmp_path: Path, read: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "AT_REST", 3600.0)
    sha256_of(written(tmp_path / "a"))
    monkeypatch.setattr(digests, "AT_REST", -1.0)
    monkeypatch.setattr(digests, "LARGE", 8)
    sha256_of(written(tmp_path / "b"))
    assert not (tmp_path / "cache").exists()
