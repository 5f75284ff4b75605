"""Prepared folders: made once for a key, in place at once or not there, by one process at a time;
and a cache that cannot be written is refused with the remedy.
"""

import errno
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from backend.engines.openvino import export
from backend.errors import DerbyError
from backend.models import prepared as cache
from backend.models.prepared import KEY, is_prepared, prepared

ROOT = Path(cache.__file__).parents[2]


@pytest.fixture(autouse=True)
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


def test_a_folder_is_made_once_for_a_key_and_anew_for_another(own_cache: Path) -> None:
    build = Recorder()
    assert not is_prepared("x", "v1")
    assert prepared("x", "v1", build) == prepared("x", "v1", build) == own_cache / "x"
    assert build.runs == 1
    assert is_prepared("x", "v1")
    folder = prepared("x", "v2", Recorder("new"))
    assert (folder / "part" / "a.bin").read_text() == "new"
    assert not is_prepared("x", "v1")


def test_an_ir_of_another_version_of_a_converter_is_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that an older optimum-intel or OpenVINO had written was used for ever."""
    places: list[tuple[str, str]] = []
    files = SimpleNamespace(fingerprint="f" * 64)
    monkeypatch.setattr(export, "model_files", lambda *_, **__: files)
    monkeypatch.setattr(export, "prepared", lambda name, key, *_: places.append((name, key)))
    for installed in ("1", "1", "2"):
        monkeypatch.setattr(cache, "version", lambda _package, installed=installed: installed)
        export.openvino_ir(export.ModelSpec("owner/model"), print)
    first, same, other = places
    assert first == same != other
    assert first[0] == other[0], "in its place"


@pytest.mark.parametrize("before", [False, True])
def test_a_build_that_fails_leaves_what_was_there(own_cache: Path, *, before: bool) -> None:
    if before:
        prepared("x", "v1", Recorder())

    def crash(folder: Path) -> None:
        (folder / "a.bin").write_text("half")
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        prepared("x", "v2", crash)
    assert not list(own_cache.glob("*.partial"))
    assert is_prepared("x", "v1") == before
    assert not is_prepared("x", "v2")


#: A process that prepares a folder of fifty files once it is told to, and checks what it has. With
#: an argument it stays where half of them are written.
PROGRAM = """
import sys
from backend.models.prepared import prepared
def build(folder):
    print('built', flush=True)
    for i in range(50):
        (folder / f'{i}.bin').write_bytes(bytes([i]) * 20000)
        if i == 25 and sys.argv[1:]:
            sys.stdin.readline()
sys.stdin.readline()
folder = prepared('x', 'v1', build)
assert all((folder / f'{i}.bin').read_bytes() == bytes([i]) * 20000 for i in range(50))
"""


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)


def test_processes_preparing_at_once_build_once() -> None:
    racers = [start() for _ in range(3)]
    for racer in racers:  # all are started before the first may begin
        print("go", file=racer.stdin, flush=True)
    outputs = [racer.communicate()[0] for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 3
    assert "".join(outputs) == "built\n"


def test_who_waits_for_another_process_says_so_and_goes_on_where_it_is_killed(
    own_cache: Path,
) -> None:
    """A killed process's half is never used, and its lock is free."""
    sentences: list[str] = []
    with start("stay") as other:
        print("go", file=other.stdin, flush=True)
        assert other.stdout
        assert other.stdout.readline() == "built\n"

        def killed(sentence: str) -> None:
            sentences.append(sentence)
            other.send_signal(signal.SIGKILL)

        folder = prepared("x", "v1", build := Recorder(), killed)
    assert "another process" in sentences[0]
    assert build.runs == 1
    assert sorted(path.name for path in folder.iterdir()) == [KEY, "part"]
    assert not list(own_cache.glob("*.partial"))


@pytest.mark.parametrize(
    ("error", "free", "why"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 1 << 40, "the disk is full"),
        (RuntimeError("basic_ios::clear: iostream error"), 0, "the disk is full"),
        (OSError(errno.EACCES, "Permission denied"), 1 << 40, "Permission denied"),
        (FileExistsError(errno.EEXIST, "File exists"), 1 << 40, "File exists"),
    ],
)
def test_a_cache_that_cannot_be_written_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, own_cache: Path, error: Exception, free: int, why: str
) -> None:
    """Visitors read the sentence, too: it does not say where."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": free}))

    def build(_: Path) -> None:
        raise error

    with pytest.raises(DerbyError, match=rf"\({why}\).*DECODE_DERBY_CACHE") as refusal:
        prepared("x", "v1", build)
    assert str(own_cache) not in str(refusal.value)
