"""Prepared folders: whole, verified, in place at once, or not there."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import SafetensorError

from backend.errors import DerbyError
from backend.models import digests
from backend.models import prepared as cache
from backend.models.prepared import MANIFEST, prepared


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Recorder:
    """A build that writes two files and counts how often it ran."""

    def __init__(self, text: str = "weights") -> None:
        self.text = text
        self.runs = 0

    def __call__(self, folder: Path) -> None:
        self.runs += 1
        (folder / "part").mkdir()
        (folder / "part" / "a.bin").write_text(self.text)
        (folder / "b.json").write_text("{}")


def test_a_spaces_volume_is_used_if_it_can_hold_prepared_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache.volume(tmp_path / "nothing mounted") is None
    place = cache.volume(tmp_path)
    assert place is not None
    assert list(place.iterdir()) == []

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "no renaming here")

    monkeypatch.setattr(Path, "rename", refuse)
    assert cache.volume(tmp_path) is None


def damage(folder: Path) -> None:
    path = folder / "part" / "a.bin"
    path.write_text("Weights" if path.read_text() == "weights" else "weights")


HARMS: dict[str, Callable[[Path], object]] = {
    "damaged": damage,
    "lost": lambda folder: (folder / "b.json").unlink(),
    "added": lambda folder: (folder / "added_tokens.json").write_text("{}"),
    "manifest lost": lambda folder: (folder / MANIFEST).unlink(),
    "manifest cut": lambda folder: (folder / MANIFEST).write_text('{"recipe": "r1", "fil'),
}


class TestPreparedFolders:
    def test_an_intact_folder_is_used_as_it_is(self, own_cache: Path) -> None:
        build = Recorder()
        first = prepared("x", "r1", build)
        assert prepared("x", "r1", build) == first == own_cache / "x"
        assert build.runs == 1
        assert (first / "part" / "a.bin").read_text() == "weights"

    @pytest.mark.parametrize("harm", HARMS)
    def test_a_harmed_folder_is_never_used(self, own_cache: Path, harm: str) -> None:
        build = Recorder()
        folder = prepared("x", "r1", build)
        HARMS[harm](folder)
        prepared("x", "r1", build)
        assert build.runs == 2
        found = sorted(p.name for p in folder.rglob("*") if p.is_file())
        assert found == ["a.bin", "b.json", MANIFEST]
        assert (folder / "part" / "a.bin").read_text() == "weights"

    def test_a_folder_of_another_recipe_is_replaced(self, own_cache: Path) -> None:
        prepared("x", "r1", Recorder("old"))
        folder = prepared("x", "r2", Recorder("new"))
        assert (folder / "part" / "a.bin").read_text() == "new"

    @pytest.mark.parametrize("before", [False, True])
    def test_a_crash_in_the_build_leaves_nothing_usable(
        self, own_cache: Path, before: bool
    ) -> None:
        if before:
            damage(prepared("x", "r1", Recorder()))

        def crash(folder: Path) -> None:
            (folder / "a.bin").write_text("half")
            raise ValueError("boom")

        with pytest.raises(ValueError, match="boom"):
            prepared("x", "r1", crash)
        assert not list(own_cache.glob("*.partial"))
        build = Recorder()
        prepared("x", "r1", build)
        assert build.runs == 1

    @pytest.mark.parametrize("name", ["part/a.bin", "b.json", MANIFEST])
    def test_a_flipped_byte_is_found_at_the_next_start_though_size_and_time_are_the_same(
        self, own_cache: Path, name: str
    ) -> None:
        path = prepared("x", "r1", Recorder()) / name
        facts, content = path.stat(), bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        digests.forget()  # as a new process has none
        build = Recorder()
        prepared("x", "r1", build)
        assert build.runs == 1

    def test_processes_preparing_at_once_build_once(self, own_cache: Path) -> None:
        """Every process checks every byte it got; the build log has a single line."""
        program = (
            "import sys; from pathlib import Path; from backend.models.prepared import prepared\n"
            "def build(folder):\n"
            "    print('built')\n"
            "    for i in range(50):\n"
            "        (folder / f'{i}.bin').write_bytes(bytes([i]) * 20000)\n"
            "sys.stdin.readline()\n"
            "got = prepared('x', 'r1', build)\n"
            "for i in range(50):\n"
            "    assert (got / f'{i}.bin').read_bytes() == bytes([i]) * 20000\n"
        )
        racers = [
            subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=Path(cache.__file__).parents[2],
            )
            for _ in range(4)
        ]
        for racer in racers:  # all are started before the first may begin
            assert racer.stdin
            racer.stdin.write("go\n")
            racer.stdin.flush()
        said = [racer.communicate()[0] for racer in racers]
        assert [racer.returncode for racer in racers] == [0] * 4
        assert "".join(said) == "built\n"

    def test_what_killed_processes_left_behind_is_cleared(self, own_cache: Path) -> None:
        """A killed set-up left up to 696 MB behind until the same folder was prepared again."""
        for name in ("x", "y"):
            (own_cache / f"{name}.partial").mkdir(parents=True)
            (own_cache / f"{name}.partial" / "junk.bin").write_text("half")
        folder = prepared("x", "r1", Recorder())
        assert not (folder / "junk.bin").exists()
        assert not list(own_cache.glob("*.partial"))

    def test_what_others_are_building_stays_and_who_waits_for_it_says_so(
        self, own_cache: Path
    ) -> None:
        program = (
            "import sys; from pathlib import Path; from backend.models.prepared import prepared\n"
            "def build(folder):\n"
            "    (folder / 'a.bin').write_bytes(b'begun')\n"
            "    print('building', flush=True)\n"
            "    sys.stdin.readline()\n"
            "prepared('y', 'r1', build)\n"
        )
        command = [sys.executable, "-c", program]
        pipe, root = subprocess.PIPE, Path(cache.__file__).parents[2]
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=root) as other:
            assert other.stdin
            assert other.stdout
            assert other.stdout.readline() == "building\n"
            prepared("x", "r1", Recorder())
            assert (own_cache / "y.partial" / "a.bin").read_bytes() == b"begun"
            said: list[str] = []

            def let_it_end(sentence: str) -> None:
                said.append(sentence)
                print("end", file=other.stdin, flush=True)

            build = Recorder()
            prepared("y", "r1", build, say=let_it_end)
        assert build.runs == 0
        (sentence,) = said
        assert "another process" in sentence
        assert "'y'" in sentence


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


#: How libraries and the system say that a disk, or what one file may take of it, is full.
RAN_FULL = (
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EFBIG, "File too large"),
    SafetensorError("I/O error: No space left on device (os error 28)"),
    RuntimeError("basic_ios::clear: iostream error"),
    DerbyError("pip could not download it ([Errno 28] No space left on device): check the network"),
    caused(ValueError("cannot convert"), OSError(errno.ENOSPC, "No space left on device")),
)


class Disk:
    """Stands in for shutil.disk_usage: so many bytes are free."""

    def __init__(self, free: int) -> None:
        self.free = free

    def __call__(self, _: Path) -> "Disk":
        return self


class TestRefusals:
    """Each was a traceback, or advised to check the network, or to make room where there was."""

    @pytest.mark.parametrize("error", RAN_FULL, ids=repr)
    def test_a_disk_that_runs_full_is_said_with_figures_and_remedy(
        self, own_cache: Path, error: Exception
    ) -> None:
        def build(_: Path) -> None:
            raise error

        with pytest.raises(DerbyError, match=r"is full.*'x' needs .* MB are free.*DECODE_DE"):
            prepared("x", "r1", build)
        assert not list(own_cache.glob("*.partial"))

    def test_whatever_fails_on_a_full_disk_failed_for_it(
        self, own_cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disk = Disk(10**9)
        monkeypatch.setattr(shutil, "disk_usage", disk)

        def fail(_: Path) -> None:
            disk.free = 0
            raise KeyError("weights")

        with pytest.raises(DerbyError, match=r"'x' needs 500 MB, and 0 MB are free"):
            prepared("x", "r1", fail, needs=500_000_000)

    def test_a_build_that_the_disk_cannot_hold_does_not_begin(
        self, own_cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shutil, "disk_usage", Disk(499_000_000))
        build = Recorder()
        with pytest.raises(DerbyError, match=r"'x' needs 500 MB, and 499 MB are free") as refusal:
            prepared("x", "r1", build, needs=500_000_000)
        assert build.runs == 0
        assert str(own_cache) not in str(refusal.value), "visitors read it"
        assert str(own_cache) in refusal.value.with_place

    @pytest.mark.parametrize("below", [".", "below", "below/it"])
    def test_a_cache_where_a_file_stands_is_said_to_be_one(
        self, own_cache: Path, monkeypatch: pytest.MonkeyPatch, below: str
    ) -> None:
        own_cache.write_text("a file")
        monkeypatch.setenv("DECODE_DERBY_CACHE", str(own_cache / below))
        with pytest.raises(DerbyError, match=r"a file is in its place or above it"):
            prepared("x", "r1", Recorder())

    @pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EPERM])
    def test_who_may_not_write_is_not_told_to_make_room(
        self, own_cache: Path, number: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def forbidden(folder: Path, *_: object, **__: object) -> None:
            raise OSError(number, os.strerror(number), str(folder))

        for place in ("build", "cache"):
            if place == "cache":
                monkeypatch.setattr(Path, "mkdir", forbidden)
            with pytest.raises(DerbyError, match=r"cannot be written by this user.*allow") as told:
                prepared("x", "r1", forbidden)
            assert "room" not in str(told.value)
            assert str(own_cache) in told.value.with_place

    def test_a_fault_of_ours_stays_one(self, own_cache: Path) -> None:
        def missing(folder: Path) -> None:
            (folder / "absent").read_text()

        with pytest.raises(FileNotFoundError):
            prepared("x", "r1", missing)
