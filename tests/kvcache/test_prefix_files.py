"""Prefixes in files: what memory would keep, found by the next worker, and gone in the end."""

import errno
import os
import random
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from backend.kvcache import prefix_files
from backend.kvcache.prefix_cache import InMemory, PrefixCache
from backend.kvcache.prefix_files import PrefixFiles, PrefixFolder, store_in
from backend.kvcache.sources import Visitor

A, B = VISITORS = Visitor("a"), Visitor("b")
ROW = 4 * 4 + 2 * 2 + 8  # bytes of one token in `cache`, and the token


def cache(tokens: list[int]) -> dict[str, NDArray[np.generic]]:
    rows = np.asarray(tokens)[None, None, :, None]
    return {
        "a key": np.broadcast_to(rows, (1, 2, len(tokens), 1)).astype(np.int16),
        "past.0": np.broadcast_to(rows / 7, (1, 2, len(tokens), 2)).astype(np.float32),
    }


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders for prefixes are made."""
    monkeypatch.setattr(prefix_files, "SHARED_MEMORY", tmp_path)
    return tmp_path


@pytest.fixture
def folder(place: Path) -> Iterator[Path]:
    made = PrefixFolder(0)
    assert made.path is not None
    yield made.path
    made.remove()


def shown(prefixes: PrefixCache) -> list[tuple[str, str, list[int], int]]:
    return [(e.scope.id, e.model, e.tokens.tolist(), e.bytes) for e in prefixes._entries]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    requests=st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "find", "forget", "die"]),
            st.sampled_from(VISITORS),
            st.sampled_from("mn"),
            st.lists(st.integers(0, 2), min_size=1, max_size=6),
        ),
        max_size=25,
    ),
    budget=st.integers(0, 16),
    share=st.integers(0, 9),
)
def test_files_keep_what_memory_keeps_across_the_deaths_of_workers(
    place: Path,
    requests: list[tuple[str, Visitor, str, list[int]]],
    budget: int,
    share: int,
) -> None:
    """The worker's death took all visitors' prefixes with it."""
    made = PrefixFolder(0)
    assert made.path is not None
    sizes = budget * ROW, share * ROW
    here, there = PrefixCache(*sizes), PrefixCache(*sizes, store_in(made.path))
    for deed, scope, model, tokens in requests:
        if deed == "put":
            here.put(scope, model, tokens, cache(tokens))
            there.put(scope, model, tokens, cache(tokens))
        elif deed == "find":
            one, two = (each.find(scope, model, tokens) for each in (here, there))
            assert one.length == two.length
            assert one.arrays.keys() == two.arrays.keys()
            for name, array in one.arrays.items():
                assert array.dtype == two.arrays[name].dtype
                assert np.array_equal(array, two.arrays[name])
        elif deed == "forget":
            here.forget(scope)
            there.forget(scope)
        else:
            there = PrefixCache(*sizes, store_in(made.path))
        assert shown(there) == shown(here)
        assert len(list(made.path.iterdir())) == len(there)
    made.remove()
    assert not made.path.exists()


def test_a_worker_with_less_room_keeps_the_ones_used_last(folder: Path) -> None:
    before = PrefixCache(store=PrefixFiles(folder))
    for token in range(6):
        before.put(A, "m", [token, token], cache([token, token]))
    before.find(A, "m", [0])
    after = PrefixCache(6 * ROW, store=PrefixFiles(folder))
    assert after.texts(A, "m") == [[4, 4], [5, 5], [0, 0]]
    assert len(list(folder.iterdir())) == 3


def test_nobody_else_can_read_them(folder: Path) -> None:
    before = os.umask(0)
    try:
        PrefixCache(store=PrefixFiles(folder)).put(A, "m", [1, 2], cache([1, 2]))
    finally:
        os.umask(before)
    (file,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.skipif(sys.platform != "linux", reason="Linux lists a process's open files")
def test_lent_arrays_outlive_their_file_and_no_file_stays_open(folder: Path) -> None:
    """A file kept open for every entry would use up all there are."""

    def opened() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    before = opened()
    prefixes = PrefixCache(store=PrefixFiles(folder))
    for token in range(20):
        prefixes.put(A, "m", [token, 2, 3], cache([token, 2, 3]))
    lent = prefixes.find(A, "m", [7, 2]).arrays
    prefixes.forget(A)
    assert list(folder.iterdir()) == []
    assert opened() == before
    for name, array in lent.items():
        assert np.array_equal(array, cache([7, 2])[name])


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[random.Random(1).randrange(8, 60)] ^= 1
    path.write_bytes(bytes(data))


def half_written(path: Path) -> None:
    path.rename(path.with_suffix(".partial"))


def foreign(path: Path) -> None:
    path.write_bytes(b"PK" * 50)


@pytest.mark.parametrize("harm", [cut, spoil, half_written, foreign])
def test_a_new_worker_passes_over_what_is_not_whole(
    folder: Path, harm: Callable[[Path], None]
) -> None:
    before = PrefixCache(store=PrefixFiles(folder))
    before.put(A, "m", [1, 2], cache([1, 2]))
    (path,) = folder.iterdir()
    before.put(B, "m", [3, 4], cache([3, 4]))
    harm(path)
    after = PrefixCache(store=PrefixFiles(folder))
    assert after.find(A, "m", [1, 2]).length == 0
    assert after.find(B, "m", [3, 4]).length == 2
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("harm", [cut, Path.unlink])
def test_a_file_that_was_lost_meanwhile_is_no_prefix(
    folder: Path, harm: Callable[[Path], None]
) -> None:
    prefixes = PrefixCache(store=PrefixFiles(folder))
    prefixes.put(A, "m", [1, 2], cache([1, 2]))
    (path,) = folder.iterdir()
    harm(path)
    assert prefixes.find(A, "m", [1, 2]).length == 0
    assert len(prefixes) == prefixes.bytes == 0


def test_without_room_for_a_file_the_worker_keeps_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    prefixes = PrefixCache(store=PrefixFiles(folder))
    monkeypatch.setattr(prefix_files, "write_file", full)
    prefixes.put(A, "m", [1, 2], cache([1, 2]))
    assert isinstance(prefixes._entries[0].held, InMemory)
    assert prefixes.find(A, "m", [1, 2]).length == 2
    assert list(folder.iterdir()) == []


class TestFolder:
    def test_it_is_where_there_is_room_in_memory_or_else_among_temporary_files(
        self, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        elsewhere = tmp_path / "temporary"
        elsewhere.mkdir()
        monkeypatch.setattr(prefix_files.tempfile, "gettempdir", lambda: str(elsewhere))
        for budget, parent in ((0, place), (2**60, elsewhere)):
            made = PrefixFolder(budget)
            assert made.path is not None
            assert made.path.parent == parent
            made.remove()
            made.remove()
        assert list(elsewhere.iterdir()) == []

    def test_without_any_place_prefixes_stay_in_the_worker(
        self, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").write_bytes(b"")
        monkeypatch.setattr(prefix_files, "SHARED_MEMORY", tmp_path / "none")
        monkeypatch.setattr(prefix_files.tempfile, "gettempdir", lambda: str(tmp_path / "file"))
        made = PrefixFolder(0)
        assert made.path is None
        made.remove()
        assert isinstance(store_in(None), prefix_files.Memory)
        assert isinstance(store_in(tmp_path / "gone"), prefix_files.Memory)

    def test_what_a_killed_process_left_is_removed_and_a_living_one_s_is_not(
        self, place: Path
    ) -> None:
        program = (
            "import sys, time\n"
            "from pathlib import Path\n"
            "from backend.kvcache import prefix_files\n"
            "prefix_files.SHARED_MEMORY = Path(sys.argv[1])\n"
            "folder = prefix_files.PrefixFolder(0)\n"
            "(folder.path / 'x').write_text('x')\n"
            "print(folder.path, flush=True)\n"
            "time.sleep(600) if sys.argv[2] == 'wait' else None\n"
        )

        def start(how: str) -> tuple["subprocess.Popen[str]", Path]:
            process = subprocess.Popen(
                [sys.executable, "-c", program, str(place), how], stdout=subprocess.PIPE, text=True
            )
            assert process.stdout is not None
            return process, Path(process.stdout.readline().strip())

        living, theirs = start("wait")
        try:
            killed, left = start("wait")
            killed.send_signal(signal.SIGKILL)
            killed.communicate()
            assert (left / "x").exists()
            ended, tidy = start("end")
            ended.communicate()
            assert not tidy.exists()
            mine = PrefixFolder(0)
            assert not left.exists()
            assert (theirs / "x").exists()
            mine.remove()
        finally:
            living.kill()
            living.communicate()
