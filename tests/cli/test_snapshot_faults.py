"""Saving on the command line where the disk does not take it: a sentence, and nothing left."""

import errno
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from backend.cli.main import app
from backend.kvcache import cache_file, snapshots
from backend.limits import Limits

SAVE = ("snapshot", "save", "xx", "--engine", "fake", "--model", "fake", "--max-new-tokens", "5")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
    return tmp_path / "snapshots"


def run(*words: str) -> Result:
    return CliRunner().invoke(app, words)


@pytest.mark.parametrize(
    ("step", "code"), [("fsync", errno.ENOSPC), ("fsync", errno.EDQUOT), ("open", errno.EROFS)]
)
def test_a_disk_that_does_not_take_it_is_a_sentence_and_exit_code_2(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: str, code: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(cache_file.os, step, fail)
    result = run(*SAVE)
    monkeypatch.undo()
    assert result.exit_code == 2
    assert os.strerror(code) in result.stderr
    assert str(folder) in result.stderr, "who runs the program may know where"
    assert list(folder.iterdir()) == []


def test_a_file_in_the_folder_s_place_is_a_sentence(folder: Path) -> None:
    folder.write_text("a file")
    for words in (SAVE, ("snapshot", "list")):
        result = run(*words)
        assert result.exit_code == 2
        assert "Not a directory" in result.stderr
    assert folder.read_text() == "a file"


@pytest.mark.usefixtures("folder")
def test_a_prompt_in_the_list_is_no_markup() -> None:
    """One with [/INST] was an error of ours, in every list until its snapshot was removed."""
    saved = run("snapshot", "save", "[INST] [b]Why?\x1b[2J[/INST]", *SAVE[3:])
    assert saved.exit_code == 0, saved.stderr
    listed = run("snapshot", "list")
    assert listed.exit_code == 0, listed.stderr
    told = "".join(listed.stdout.split())
    assert "\x1b" not in told
    assert "INST" in told


def test_the_command_line_has_a_quota_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = snapshots.SnapshotFolder.__init__

    def strict(self: snapshots.SnapshotFolder, place: Path, limits: Limits) -> None:
        usual(self, place, Limits(snapshots=1))

    monkeypatch.setattr(snapshots.SnapshotFolder, "__init__", strict)
    assert run(*SAVE).exit_code == 0
    result = run(*SAVE)
    assert result.exit_code == 2
    assert "You keep 1 snapshots, and the limit is 1: delete one" in result.stderr
    assert len(list(folder.iterdir())) == 1
