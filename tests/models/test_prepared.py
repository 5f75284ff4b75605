"""Prepared folders: whole, verified, in place at once, or not there."""

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from backend.errors import DerbyError
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


def damage(folder: Path) -> None:
    path = folder / "part" / "a.bin"
    path.write_text("Weights" if path.read_text() == "weights" else "weights")


def lose(folder: Path) -> None:
    (folder / "b.json").unlink()


def add(folder: Path) -> None:
    (folder / "added_tokens.json").write_text("{}")


def lose_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


def truncate_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text('{"recipe": "r1", "fil')


class TestPreparedFolders:
    def test_an_intact_folder_is_used_as_it_is(self, own_cache: Path) -> None:
        build = Recorder()
        first = prepared("x", "r1", build)
        assert prepared("x", "r1", build) == first == own_cache / "x"
        assert build.runs == 1
        assert (first / "part" / "a.bin").read_text() == "weights"

    @pytest.mark.parametrize("harm", [damage, lose, add, lose_manifest, truncate_manifest])
    def test_a_harmed_folder_is_never_used(
        self, own_cache: Path, harm: Callable[[Path], None]
    ) -> None:
        build = Recorder()
        folder = prepared("x", "r1", build)
        harm(folder)
        prepared("x", "r1", build)
        assert build.runs == 2
        found = sorted(p.name for p in folder.rglob("*") if p.is_file())
        assert found == ["a.bin", "b.json", MANIFEST]
        assert (folder / "part" / "a.bin").read_text() == "weights"

    def test_a_folder_of_another_recipe_is_replaced(self, own_cache: Path) -> None:
        prepared("x", "r1", Recorder("old"))
        folder = prepared("x", "r2", Recorder("new"))
        assert (folder / "part" / "a.bin").read_text() == "new"

    def test_a_crash_in_the_build_leaves_nothing_usable(self, own_cache: Path) -> None:
        def crash(folder: Path) -> None:
            (folder / "a.bin").write_text("half")
            raise ValueError("boom")

        with pytest.raises(ValueError, match="boom"):
            prepared("x", "r1", crash)
        assert not [p for p in own_cache.iterdir() if p.is_dir()]
        assert prepared("x", "r1", Recorder()).is_dir()

    def test_a_failed_rebuild_keeps_no_stale_folder_in_use(self, own_cache: Path) -> None:
        folder = prepared("x", "r1", Recorder())
        damage(folder)

        def crash(_: Path) -> None:
            raise ValueError("boom")

        with pytest.raises(ValueError, match="boom"):
            prepared("x", "r1", crash)
        build = Recorder()
        prepared("x", "r1", build)
        assert build.runs == 1

    def test_what_a_killed_process_left_behind_is_cleared(self, own_cache: Path) -> None:
        (own_cache / "x.partial").mkdir(parents=True)
        (own_cache / "x.partial" / "junk.bin").write_text("half")
        folder = prepared("x", "r1", Recorder())
        assert not (folder / "junk.bin").exists()
        assert not (own_cache / "x.partial").exists()

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

    def test_a_cache_that_cannot_be_written_is_a_clear_refusal(self, own_cache: Path) -> None:
        def full(_: Path) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with pytest.raises(DerbyError, match="DECODE_DERBY_CACHE"):
            prepared("x", "r1", full)
