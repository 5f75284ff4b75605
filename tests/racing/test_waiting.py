"""How far loading has come: told as it comes, and never while nothing does."""

import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from backend.models import prepared as cache
from backend.models.hub_quota import HubQuota
from backend.models.prepared import Building, building, prepared
from backend.racing.models import LoadedModels
from backend.racing.waiting import ALL, MAPS, Held, Progress, held, progress


class Memory:
    """Of a process that holds `now`."""

    now = Held(1_000_000_000, 50_000_000)

    def __call__(self) -> Held:
        return self.now


def test_memory_that_comes_is_told_and_what_does_not_come_is_not() -> None:
    """A thread that repeats itself would keep a worker from being found to hang."""
    said, memory = list[str](), Memory()
    told = Progress(said.append, memory)
    told.look(0.0, ())
    assert said == [], "before the first sentence there is nothing to add to"
    told.say("Loading it...")
    for now in range(5):
        told.look(now, ())
    assert said == ["Loading it..."]
    memory.now = Held(2_500_000_000, 50_000_000)
    for now in range(5):
        told.look(now, ())
    assert said[1:] == ["Loading it... 1.5 GB in memory"]


def test_a_model_is_read_and_then_laid_out_each_with_its_own_share_and_speed() -> None:
    """OpenVINO reads 1.15 GB in 4 s and lays them out anew in 17: only gigabytes were told, without
    a share, and one speed for both would have told of a sixth of the time that was left.
    """
    said, memory = list[str](), Memory()
    told = Progress(said.append, memory, 2_000_000_000)
    told.say("Loading it...")
    memory.now = Held(1_150_000_000, 50_000_000)
    told.look(0.0, ())
    for now, own, read in ((1, 0, 0.5), (2, 0.1, 1.5), (3, 0.5, 2.0), (5, 1.5, 2.0), (9, 2.2, 2.0)):
        memory.now = Held(int((1.15 + own) * 1e9), int((0.05 + read) * 1e9), 2_000_000_000)
        told.look(now, ())
    assert said[1:] == [
        "Loading it... 150.0 MB in memory",  # of libraries
        "Loading it... 500.0 MB of about 2.0 GB read (25%)",
        "Loading it... 1.5 GB of about 2.0 GB read (75%), about 1 s left",
        "Loading it... 500.0 MB of about 2.0 GB in memory (25%)",
        "Loading it... 1.5 GB of about 2.0 GB in memory (75%), about 1 s left",
        "Loading it... 2.2 GB in memory",
    ]


@pytest.mark.skipif(not MAPS.exists(), reason="Linux alone tells")
def test_what_a_process_reads_of_a_file_that_it_maps_is_seen(tmp_path: Path) -> None:
    file, size = tmp_path / "model.bin", 1 << 25
    file.write_bytes(bytes(size))
    before = held()
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert (held() - before).mapped >= size
        assert (held() - before).read < size / 2
        sum(mapped[::4096])
        assert (held() - before).read >= ALL * size


def test_what_is_written_has_a_share_and_then_a_time_that_is_left() -> None:
    said = list[str]()
    told = Progress(said.append, Memory())
    told.say("Converting it...")
    for now, written in enumerate([0, 1_000_000_000, 1_000_000_000, 2_000_000_000, 5_000_000_000]):
        told.look(10.0 * now, (Building(written, 4_000_000_000),))
    assert said[1:] == [
        "Converting it... 1.0 GB of about 4.0 GB written (25%)",
        "Converting it... 2.0 GB of about 4.0 GB written (50%), about 40 s left",
        "Converting it... 5.0 GB written",
    ]
    told.say("Compressing it...")
    for now, written in ((50.0, 3_680_000_000), (90.0, 3_680_000_009)):
        told.look(now, (Building(written, 4_000_000_000),))
    assert said[-1].endswith("(92%)"), "nine bytes once told of three million seconds left"
    told.say("Loading it...")
    told.look(60.0, (Building(6_000_000_000, 0),))
    assert said[-1] == "Loading it... 6.0 GB written", "of an unknown number"


def test_folders_are_looked_at_while_they_are_built_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
    seen: list[tuple[Building, ...]] = []

    def build(folder: Path) -> None:
        (folder / "scratch").mkdir()
        (folder / "scratch" / "on the way").write_bytes(bytes(7))
        seen.append(building())
        (folder / "model.bin").write_bytes(bytes(100))
        seen.append(building())
        (folder / "scratch" / "weights.incomplete").write_bytes(bytes(20))  # of a download
        seen.append(building())
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        prepared("x", "r1", build, 250)
    assert seen == [(Building(written, 250),) for written in (0, 100, 120)]
    assert building() == ()
    assert not cache._building


def test_a_folder_that_is_put_in_place_while_it_is_looked_at_ends_no_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder was there when its kind was asked and renamed when it was read: the thread that
    tells of progress ended with a traceback.
    """
    partial, scan = tmp_path / "x.partial", os.scandir
    partial.mkdir()
    (partial / "model.bin").write_bytes(bytes(100))
    monkeypatch.setattr(cache, "_building", {partial: 250})

    def scandir(path: str | Path) -> object:
        if partial.exists():
            partial.rename(tmp_path / "x")
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert building() == (Building(0, 250),)


def test_a_download_is_told_as_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page told of its size alone, for as long as it took."""
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
    monkeypatch.setattr("backend.racing.waiting.LOOK", 0.001)
    said, heard = list[str](), threading.Event()

    def say(sentence: str) -> None:
        said.append(sentence)
        if "written" in sentence:
            heard.set()

    def fetch(_quota: HubQuota, name: str, tell: Callable[[str], None], _needed: object) -> None:
        def build(folder: Path) -> None:
            (folder / ".cache").mkdir()
            (folder / ".cache" / "weights.incomplete").write_bytes(bytes(5_000_000))
            tell(f"Downloading {name}...")
            assert heard.wait(60)

        prepared("x", "r1", build, 20_000_000)

    monkeypatch.setattr(HubQuota, "fetch", fetch)
    LoadedModels().fetch("owner/model", say)
    assert said[:2] == [
        "Downloading owner/model...",
        "Downloading owner/model... 5.0 MB of about 20.0 MB written (25%)",
    ]


def test_sentences_are_passed_on_and_no_thread_stays() -> None:
    said = list[str]()
    with progress(said.append) as tell:
        tell("Loading it...")
    assert said == ["Loading it..."]
