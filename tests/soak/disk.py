"""Set-ups on disks that are full, read-only, shared, damaged, or killed in the middle.

Each ends right or with one sentence, and the next one ends right. The small set-up prepares two
folders of a few megabytes by the same code; the real one is `python -m backend setup`.
"""

import contextlib
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from soak.report import Log, Result, at_least
from soak.server import ROOT

#: Seconds that a set-up may take.
PATIENCE = 900.0

_SMALL = """
import sys
from backend.errors import DerbyError
from backend.models.prepared import prepared
def build(folder):
    for i in range(16):
        (folder / f"{i}.bin").write_bytes(bytes([i]) * 2**18)
try:
    for name in ("first", "second"):
        prepared(name, "recipe", build)
except DerbyError as error:
    sys.exit(f"{error}")
"""


@dataclass(frozen=True, slots=True)
class SetUp:
    """What is run. `megabytes` are disks on which it does not fit, and last one on which it does;
    `seconds` is how late it may be killed.
    """

    name: str
    command: Sequence[str]
    megabytes: Sequence[int]
    seconds: float
    refusal: int


SMALL = SetUp("small set-up", (sys.executable, "-c", _SMALL), (1, 3, 7, 64), 1.0, 1)
REAL = SetUp(
    "real set-up", (sys.executable, "-m", "backend", "setup"), (1, 150, 700, 1300, 4000), 60.0, 2
)


WRONG = "that ended neither right nor in a sentence"
TRIED, REFUSED, UNTRIED = "set-ups tried", "refused in a sentence", "not tried here"


def disk(
    kills: int = 20, real_kills: int = 5, flips: int = 1000, *, real: bool = True, seed: int = 0
) -> Result:
    """Every harm to the small set-up, killed so often and so many files flipped; then the same to
    the real one, killed `real_kills` times.
    """
    chance, log = random.Random(seed), Log(WRONG)
    _trouble(SMALL, kills, flips, chance, log)
    if real:
        _trouble(REAL, real_kills, flips, chance, log)
    size = f"{kills} kills, seed {seed}" + (f"; real set-up, {real_kills} kills" if real else "")
    return log.result("disk", size, [at_least(TRIED, log.counts[TRIED], 1)])


def _trouble(setup: SetUp, kills: int, flips: int, chance: random.Random, log: Log) -> None:
    if _can_mount():
        _full(setup, log)
        _read_only(setup, log)
    else:
        log.counts[f"{UNTRIED}, only root may mount: full disks, {setup.name}"] += 1
    with _folder() as cache:
        _at_once(setup, cache, log)
        _flipped(setup, cache, flips, chance, log)
    with _folder() as cache:
        _killed(setup, cache, kills, chance, log)


def _full(setup: SetUp, log: Log) -> None:
    """On disks that are too small; on the last one, which is grown until it is not, it must end."""
    for size in setup.megabytes[:-1]:
        with _folder() as cache, _tmpfs(cache, size):
            _judged(setup, cache, f"a disk of {size} MB", log)
            _mount("-o", f"remount,size={setup.megabytes[-1]}m", str(cache))
            _must_end(setup, cache, f"a disk of {size} MB that was given more", log)


def _read_only(setup: SetUp, log: Log) -> None:
    with _folder() as cache, _tmpfs(cache, setup.megabytes[-1]):
        _mount("-o", "remount,ro", str(cache))
        _judged(setup, cache, "an empty read-only disk", log)
        _mount("-o", "remount,rw", str(cache))
        _must_end(setup, cache, "a disk that may be written again", log)
        _mount("-o", "remount,ro", str(cache))
        _must_end(setup, cache, "a prepared read-only disk", log)


def _at_once(setup: SetUp, cache: Path, log: Log) -> None:
    running = [_start(setup, cache) for _ in range(2)]
    for process in running:
        said = process.communicate(timeout=PATIENCE)[1]
        log.counts[TRIED] += 1
        if process.returncode:
            log.flaw(WRONG, f"{setup.name}, two at once: {process.returncode}, {said[-300:]}")
    log.wrong[WRONG] += [f"{setup.name}, two at once: {flaw}" for flaw in _flaws(cache)]


def _flipped(setup: SetUp, cache: Path, flips: int, chance: random.Random, log: Log) -> None:
    """One byte of each prepared file is another, `flips` files at most."""
    files = [p for p in _prepared_files(cache) if p.stat().st_size]
    for path in chance.sample(files, min(flips, len(files))):
        place = chance.randrange(path.stat().st_size)
        with path.open("r+b") as file:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1]))
        _must_end(setup, cache, f"byte {place} of {path.relative_to(cache)} flipped", log)


def _killed(setup: SetUp, cache: Path, kills: int, chance: random.Random, log: Log) -> None:
    """Killed at random moments, with all that it started, and begun anew each time."""
    for _ in range(kills):
        process = _start(setup, cache)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0, setup.seconds))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.communicate()
        log.counts[TRIED] += 1
    _must_end(setup, cache, f"after {kills} kills", log)
    log.wrong[WRONG] += [
        f"{setup.name}, after {kills} kills: {p.name} is left" for p in cache.glob("*.partial")
    ]


def _start(setup: SetUp, cache: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        setup.command,
        cwd=ROOT,
        env=os.environ | {"DECODE_DERBY_CACHE": str(cache)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _judged(setup: SetUp, cache: Path, where: str, log: Log) -> int:
    """Run it: its exit code. Anything but 0, or a sentence and the code for that, is wrong."""
    process = _start(setup, cache)
    said = process.communicate(timeout=PATIENCE)[1]
    log.counts[TRIED] += 1
    if process.returncode == 0:
        log.wrong[WRONG] += [f"{setup.name}, {where}: {flaw}" for flaw in _flaws(cache)]
    elif process.returncode == setup.refusal and "Traceback" not in said and said.strip():
        log.counts[REFUSED] += 1
    else:
        log.flaw(WRONG, f"{setup.name}, {where}: exit code {process.returncode}: {said[-600:]}")
    return process.returncode


def _must_end(setup: SetUp, cache: Path, where: str, log: Log) -> None:
    refused = log.counts[REFUSED]
    if _judged(setup, cache, where, log) and log.counts[REFUSED] > refused:
        log.flaw(WRONG, f"{setup.name}, {where}: it was refused")


def _prepared_files(cache: Path) -> list[Path]:
    """The files that manifests name, and the manifests."""
    return sorted(
        path
        for manifest in cache.glob("*/manifest.json")
        for path in manifest.parent.rglob("*")
        if path.is_file()
    )


def _flaws(cache: Path) -> list[str]:
    """Where the cache is not what its manifests say, read with code of our own."""
    flaws = [] if list(cache.glob("*/manifest.json")) else ["nothing is prepared"]
    for manifest in cache.glob("*/manifest.json"):
        for name, facts in json.loads(manifest.read_text())["files"].items():
            with (manifest.parent / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != facts["sha256"]:
                    flaws.append(f"{manifest.parent.name}/{name} is damaged")
    return flaws


def _can_mount() -> bool:
    if os.geteuid():
        return False
    with _folder() as folder:
        try:
            with _tmpfs(folder, 1):
                return True
        except subprocess.CalledProcessError:
            return False


@contextlib.contextmanager
def _tmpfs(folder: Path, megabytes: int) -> Iterator[None]:
    """A disk of that size in the place of a folder."""
    _mount("-t", "tmpfs", "-o", f"size={megabytes}m", "derby-soak", str(folder))
    try:
        yield
    finally:
        unmount(folder)


def unmount(folder: Path) -> None:
    """Take a disk away, once no process that was killed holds it any more."""
    for _ in range(100):
        done = subprocess.run(["umount", str(folder)], capture_output=True, check=False)  # noqa: S607
        if done.returncode == 0:
            return
        threading.Event().wait(0.1)


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)  # noqa: S607


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="derby-soak-") as folder:
        yield Path(folder)
