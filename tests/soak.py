"""A crowd's page, by hand before a release: five visitors race while workers are killed.

    python tests/soak.py [--minutes 10]

Visitors use the page's API as programs do. Every race must end with all columns done, stopped, or
failed in a sentence; after each killed worker a race must end well within PATIENCE; and the memory
of page and worker in the last third may exceed that of the middle third by GROWTH at most. Prints
what happened; exit code 1 if something of this does not hold.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from gradio_client import Client

ROOT = Path(__file__).resolve().parent.parent

VISITORS = 5

#: Seconds between two kills, and those within which a race must end well after one.
BETWEEN, PATIENCE = (5.0, 20.0), 60.0

#: Share by which memory may grow from the middle third to the last one.
GROWTH = 0.10

#: Seconds between two looks at the memory.
LOOK = 2.0

COLUMNS = ["kv", "lookup", "speculative:draft=int4,k=4", "lookahead", "grammar"]

#: What the log says of an error that nobody foresaw.
BROKEN = re.compile(r"Traceback \(most|internal error [0-9a-f]+")


@dataclass
class Soak:
    """What was seen, by any thread."""

    process: psutil.Process
    address: str
    over: threading.Event = field(default_factory=threading.Event)
    states: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    ended_well: float = field(default_factory=time.monotonic)
    kills: int = 0
    memory: list[tuple[int, int]] = field(default_factory=list)

    def workers(self) -> list[psutil.Process]:
        """The processes that run races: children that multiprocessing spawned."""
        children = self.process.children(recursive=True)
        return [child for child in children if "spawn_main" in _command(child)]

    def visit(self, number: int) -> None:
        """Race until it is over."""
        chance = random.Random(number)
        client = Client(self.address, verbose=False)
        while not self.over.is_set():
            columns = chance.sample(COLUMNS, chance.randint(1, len(COLUMNS)))
            prompt = f"Visitor {number} asks {chance.randint(1, 9)}"
            tokens = chance.choice([8, 64, 400])
            try:
                job = client.submit(prompt, columns, tokens, api_name="/race")
                report = job.result(timeout=600)
            except Exception as error:
                if not self.over.is_set():
                    self.wrong.append(f"{columns}: {type(error).__name__}: {error}")
                continue
            self.judge(report)

    def judge(self, report: dict[str, Any]) -> None:
        """Is every column's end one that a visitor can be told of?"""
        states = [column["state"] for column in report["columns"]]
        self.states.update(states)
        if all(state == "done" for state in states):
            self.ended_well = time.monotonic()
        for column in report["columns"]:
            message = column.get("message", "")
            if column["state"] not in ("done", "stopped", "failed"):
                self.wrong.append(f"a race ended with a column {column['state']}")
            if column["state"] == "failed" and not message.endswith("."):
                self.wrong.append(f"a column failed without a sentence: {message!r}")

    def kill(self) -> None:
        """Kill a worker now and then; a race must end well after each."""
        chance = random.Random(0)
        while not self.over.wait(chance.uniform(*BETWEEN)):
            for worker in self.workers():
                worker.kill()
                self.kills += 1
            killed = time.monotonic()
            while self.ended_well < killed and not self.over.wait(0.1):
                if time.monotonic() - killed > PATIENCE:
                    self.wrong.append(f"no race ended well within {PATIENCE:g} s of a kill")
                    break

    def watch(self) -> None:
        """Note the bytes that page and worker hold."""
        while not self.over.wait(LOOK):
            worker = max(map(_bytes, self.workers()), default=0)
            self.memory.append((_bytes(self.process), worker))

    def grown(self, part: int) -> float:
        """By how much the memory of the page (0) or worker (1) grew from the middle third to the
        last one.
        """
        known = [look[part] for look in self.memory if look[part]]
        third = max(1, len(known) // 3)
        return median(known[-third:]) / median(known[third : 2 * third] or known) - 1


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _bytes(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.Error:
        return 0


def served(log: Path) -> tuple[subprocess.Popen[bytes], str]:
    """The app on its fake engine, and its address once it answers."""
    command = [sys.executable, "app.py", "--port", "0", "--fake"]
    with log.open("wb") as out:
        app = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    until = time.monotonic() + 300
    while not (found := re.search(r"http://\S+", log.read_text(errors="replace"))):
        if app.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"The app did not start:\n{log.read_text(errors='replace')}")
        time.sleep(0.1)
    return app, found[0].rstrip("/")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=10.0)
    minutes = options.parse_args().minutes
    with tempfile.TemporaryDirectory(prefix="derby-soak-") as folder:
        log = Path(folder) / "log"
        app, address = served(log)
        soak = Soak(psutil.Process(app.pid), address)
        try:
            tasks = [(soak.visit, (n,)) for n in range(VISITORS)] + [
                (soak.kill, ()),
                (soak.watch, ()),
            ]
            threads = [threading.Thread(target=t, args=a, daemon=True) for t, a in tasks]
            for thread in threads:
                thread.start()
            time.sleep(60 * minutes)
        finally:
            soak.over.set()
            app.terminate()
            app.wait(30)
        broken = BROKEN.findall(log.read_text(errors="replace"))
    soak.wrong += [f"the log has {broken.count(each)} x {each!r}" for each in sorted(set(broken))]
    for name, part in (("page", 0), ("worker", 1)):
        growth = soak.grown(part)
        print(f"memory of the {name}: {soak.memory[-1][part] / 2**20:.0f} MiB, {growth:+.1%}")
        if growth > GROWTH:
            soak.wrong.append(f"the memory of the {name} grew by {growth:.1%}")
    print(f"{soak.kills} workers killed; columns {dict(soak.states)}")
    print("\n".join(soak.wrong) or "all of it holds")
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
