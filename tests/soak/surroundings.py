"""The app where users put it: other homes, paths, locales, ports and caches than a developer's."""

import asyncio
import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from soak.client import Client
from soak.disk import unmount
from soak.forms import ended, form
from soak.report import Log, Result, at_least
from soak.server import ROOT, Server, private_cache

#: Nobody, who owns nothing here.
NOBODY = "65534"

#: Where root lives, which others may not enter.
_HOME = pwd.getpwuid(0).pw_dir

#: Run as nobody with a home that is not there. The interpreter may lie in root's own home: it is
#: shown to others in a view of the disk of their own.
_AS_NOBODY = f"""
base=$(readlink -f "$0"); base=$(dirname "$(dirname "$base")")
case $base in
{_HOME}/*)
  hold=$(mktemp -d) && mount --bind "$base" "$hold" && mount -t tmpfs tmpfs {_HOME} &&
  chmod 755 {_HOME} && mkdir -p "$base" && mount --bind "$hold" "$base" ;;
esac
exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --inh-caps=-all "$@"
"""


WRONG = "places where it does neither"


class UntriedError(Exception):
    """What a place lacks for a case to be tried."""


def surroundings(only: tuple[str, ...] = ()) -> Result:
    """Start the app in each of the places; `only` names some of them."""
    log, tried = Log(WRONG), 0
    for name in only or CASES:
        try:
            CASES[name]()
        except UntriedError as why:
            log.counts[f"not tried here: {name}, {why}"] += 1
            continue
        except Exception as error:
            log.flaw(WRONG, f"{name}: {error!r}")
        tried += 1
    places = len(only or CASES)
    return log.result("surroundings", f"{places} places", [at_least("places tried", tried, 1)])


def _races(server: Server) -> None:
    """Raises RuntimeError unless a race runs to its end, a grammar's too, and nothing broke."""

    async def race() -> None:
        async with Client(server.address) as client:
            asked = form("Grüße aus Köln", 8, "kv", "grammar:grammar=yes_no")
            view = await asyncio.wait_for(client.last(**asked), 120)
            states = [column["state"] for column in view.get("columns", ())]
            if not ended(view) or states != ["done", "done"]:
                raise RuntimeError(f"{str(view)[:300]}")

    asyncio.run(race())
    if server.broken:
        raise RuntimeError(server.broken[0])


def _elsewhere_user() -> None:
    if os.geteuid() or not shutil.which("setpriv") or not shutil.which("unshare"):
        raise UntriedError("needs root, setpriv and unshare")
    prefix = ("unshare", "-m", "sh", "-c", _AS_NOBODY, sys.executable)
    home = {"HOME": "/nonexistent", "XDG_CACHE_HOME": "", "TMPDIR": tempfile.gettempdir()}
    with Server("--fake", environment=home, prefix=prefix) as server:
        _races(server)


def _read_only() -> None:
    if os.geteuid():
        raise UntriedError("only root may mount a folder read-only")
    with _copy("checkout") as root, private_cache() as cache, ExitStack() as opened:
        mount = ("mount", "--bind", str(root), str(root))
        subprocess.run(mount, check=True, capture_output=True)
        opened.callback(unmount, root)
        subprocess.run(
            ["mount", "-o", "remount,ro,bind", str(root)],  # noqa: S607
            check=True,
            capture_output=True,
        )
        with Server("--fake", cache=cache, root=root) as server:
            _races(server)


def _locale() -> None:
    plain = {"LANG": "C", "LC_ALL": "C"}
    with private_cache() as cache:
        with Server("--fake", cache=cache, environment=plain) as server:
            _races(server)
        command = [sys.executable, "-m", "backend", "race", "Grüße", "--model", "fake"]
        done = subprocess.run(
            [*command, "--engine", "fake", "--max-new-tokens", "8"],
            cwd=ROOT,
            env=os.environ | plain | {"DECODE_DERBY_CACHE": str(cache)},
            capture_output=True,
            check=False,
        )
    if done.returncode or b"Traceback" in done.stderr:
        raise RuntimeError(done.stderr.decode("utf-8", "replace")[-600:])


def _path() -> None:
    with _copy("Räume & Käfige, mit Leerzeichen") as root, private_cache() as cache:
        own = cache / "Zwischen speicher äöü"
        with Server("--fake", cache=own, root=root) as server:
            _races(server)


def _port() -> None:
    with private_cache() as cache, Server("--fake", cache=cache) as server:
        second = Server("--fake", cache=cache, port=server.port)
        try:
            code = second.process.wait(120)
            said = second.log.strip()
        finally:
            second.close()
        _races(server)
    if code == 0 or "Traceback" in said or not said.endswith("."):
        raise RuntimeError(f"exit code {code}: {said[-600:]}")


def _together() -> None:
    async def save(server: Server) -> None:
        async with Client(server.address) as client:
            await client.last(**form("Together", 8, "kv"))
            told = await client.call("save.click")
            if not told[1]:
                raise RuntimeError(str(told))

    with private_cache() as cache, Server("--fake", cache=cache) as one:
        with Server("--fake", cache=cache) as two:
            _races(one)
            _races(two)

            async def both() -> None:
                await asyncio.gather(*(save(server) for server in (one, two)))

            asyncio.run(both())
        _races(one)


CASES: dict[str, Callable[[], None]] = {
    "another user without a home": _elsewhere_user,
    "a read-only checkout": _read_only,
    "LANG=C": _locale,
    "a path with spaces and umlauts": _path,
    "a port that is taken": _port,
    "two on one cache": _together,
}


@contextlib.contextmanager
def _copy(name: str) -> Iterator[Path]:
    """What the app needs of this checkout, in a folder of that name."""
    with tempfile.TemporaryDirectory(prefix="derby-soak-") as folder:
        root = Path(folder) / name
        root.mkdir()
        for part in ("app.py", "pyproject.toml"):
            shutil.copy2(ROOT / part, root)
        for part in ("assets", "backend", "grammars", "page"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, root / part, ignore=ignored)
        yield root
