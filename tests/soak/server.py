"""The app under trial: `python app.py` in a process of its own, with what can be seen of it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

from backend.models.cache_folder import cache_dir

ROOT = Path(__file__).resolve().parents[2]

#: Seconds that anything may take that must happen at all.
PATIENCE = 60.0

#: Seconds that a first start may take: the built-in model may have to be prepared.
START = 300.0

#: What our log says when something broke that was not foreseen; a narrow one cuts the first off.
BROKEN = re.compile(r"Traceback \(most|internal error [0-9a-f]+")


def until(condition: Callable[[], object], seconds: float = PATIENCE, every: float = 0.02) -> float:
    """Look until it is so: the seconds that it took. Raises TimeoutError."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > seconds:
            raise TimeoutError(f"waited {seconds:g} s in vain")
        threading.Event().wait(every)
    return time.monotonic() - begun


class Server:
    """A started app. Close it, or use it in a `with`."""

    def __init__(
        self,
        *options: str,
        cache: Path | None = None,
        environment: Mapping[str, str] | None = None,
        root: Path = ROOT,
        port: int = 0,
        prefix: Sequence[str] = (),
    ) -> None:
        """Start `PREFIX python app.py OPTIONS` in `root`; `started` waits for its answer."""
        self.port = port  # 0: known once it has started
        around = os.environ | {"PYTHONUNBUFFERED": "1"}
        around.pop("SPACE_ID", None)
        if cache is not None:
            around["DECODE_DERBY_CACHE"] = str(cache)
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "app.py", "--port", str(self.port), *options],
            cwd=root,
            env=around | dict(environment or {}),
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._watched = psutil.Process(self.process.pid)

    def __enter__(self) -> "Server":
        return self.started()

    def __exit__(self, *_: object) -> None:
        self.close()

    def started(self) -> "Server":
        """Wait until it serves. Raises RuntimeError, with its last words, if it ends instead."""
        until(lambda: "http://" in self.log or self.process.poll() is not None, START)
        if self.process.poll() is not None:
            raise RuntimeError(f"the app ended ({self.process.returncode}): {self.log[-2000:]}")
        if not self.port and (found := re.search(r"http://[^/]*:(\d+)", self.log)):
            self.port = int(found[1])
        return self

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """All that it has written so far."""
        end = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), end, 0).decode("utf-8", "replace")

    @property
    def broken(self) -> list[str]:
        """What it logged of errors that were not foreseen, each with a line after it."""
        log = self.log
        return [log[found.start() : found.start() + 1500] for found in BROKEN.finditer(log)]

    def family(self) -> list[psutil.Process]:
        """Every process below the page's."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return self._watched.children(recursive=True)
        return []

    def worker(self) -> psutil.Process:
        """The process that runs races. Raises TimeoutError if there is none."""
        found: list[psutil.Process] = []

        def look() -> bool:
            found[:] = [p for p in self.family() if _runs_races(p)]
            return bool(found)

        until(look)
        return found[-1]

    def rss(self) -> tuple[int, int]:
        """Bytes of memory of the page and of its worker, 0 for one that is not there."""
        workers = [p for p in self.family() if _runs_races(p)]
        return _rss(self._watched), max(map(_rss, workers), default=0)

    def held(self) -> tuple[int, int, int]:
        """Threads and file descriptors of the page's process, and processes below it."""
        with self._watched.oneshot():
            return self._watched.num_threads(), self._watched.num_fds(), len(self.family())

    def end(self, sign: signal.Signals) -> None:
        """Send a signal to the page's own process alone."""
        self.process.send_signal(sign)

    def close(self) -> None:
        """End it and all that it started."""
        family = self.family()
        self.process.kill()
        self.process.wait()
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self._log.close()


def _runs_races(process: psutil.Process) -> bool:
    try:
        command = process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    return any("spawn_main" in word for word in command) and process.status() != "zombie"


def _rss(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0


@contextlib.contextmanager
def private_cache(*, filled: bool = False) -> Iterator[Path]:
    """A cache folder of one's own, empty or with what this user's holds of prepared folders."""
    with tempfile.TemporaryDirectory(prefix="derby-soak-", ignore_cleanup_errors=True) as folder:
        cache = Path(folder)
        for manifest in cache_dir().glob("*/manifest.json") if filled else ():
            (cache / manifest.parent.name).symlink_to(manifest.parent)
        yield cache
