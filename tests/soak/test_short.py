"""Every row of the soak at a few counts: the bars hold but those of seconds, and so does the
harness itself.
"""

import asyncio
import importlib
import signal
from pathlib import Path

import pytest
from soak.crowd import RACED, CrowdLog, Siege, compared
from soak.page import until_racing
from soak.report import Log, as_json, as_markdown, at_most, noted, read_json
from soak.rows import ROWS
from soak.server import PATIENCE, Server, private_cache

# At collection, before any row has started threads or a browser.
importlib.import_module("soak.fuzz")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.browser) if n == "network" else n for n in ROWS],
)
def test_a_row_at_its_short_size_holds_its_bars(name: str) -> None:
    found = ROWS[name].run(short=True)
    assert found.sound, as_markdown([found])


def test_others_who_wait_longer_or_are_refused_beside_hostile_visitors_fail_the_row() -> None:
    def crowd(seconds: list[float], refused: int = 0) -> CrowdLog:
        log = CrowdLog()
        log.seconds[RACED] = seconds
        log.counts.update({"asked for": 100, "refused in a sentence": refused})
        return log

    def held(log: CrowdLog) -> list[bool]:
        return [figure.ok for figure in compared(calm, log) if figure.bar]

    calm = crowd([1.0] * 9 + [2.0, 2.0])
    assert held(calm) == [True, True, True]
    assert held(crowd([1.1] * 9 + [2.3, 2.3])) == [True, True, True]
    assert held(crowd([1.3] * 9 + [2.0, 2.0])) == [False, True, True]
    assert held(crowd([1.0] * 9 + [2.5, 2.5])) == [True, False, True]
    assert held(crowd([1.0] * 9 + [2.0, 2.0], refused=6)) == [True, True, False]
    assert held(CrowdLog()) == [False, False, True]


@pytest.mark.thorough
def test_what_a_page_breaks_off_as_it_ends_is_no_error(tmp_path: Path) -> None:
    # The server's thread told of a race's end after the interpreter had closed its pools of
    # threads: one page in some hundred logged a traceback. This interpreter stays there for longer.
    waits = "import threading, time; threading._register_atexit(time.sleep, 0.5)"
    (tmp_path / "sitecustomize.py").write_text(waits, encoding="utf-8")
    with private_cache() as cache:
        lasting = {"PYTHONPATH": str(tmp_path)}
        with Server("--fake", cache=cache, environment=lasting) as server:
            asyncio.run(until_racing(server, 0))
            server.end(signal.SIGTERM)
            server.process.wait(PATIENCE)
            assert server.broken == []


def test_races_count_for_the_side_on_which_they_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("soak.crowd.SETTLE", 0.0)
    log, siege = CrowdLog(), Siege(1, 0.2)

    async def attack(_: float) -> None:
        log.took(RACED, 1.0)
        await asyncio.sleep(0)
        log.took(RACED, 2.0)
        while not siege.beside.seconds.get(RACED):  # until that half is over, however long it took
            await asyncio.sleep(0.001)
        log.took(RACED, 3.0)

    async def race_in_peace() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        log.took(RACED, 4.0)

    sides: list[tuple[str, bool]] = []

    async def stand_in(_: float) -> None:
        sides.append(("came", siege.now is siege.beside))
        try:
            await asyncio.Event().wait()
        finally:
            sides.append(("left", siege.now is siege.beside))

    async def play() -> None:
        await asyncio.gather(siege.run(log, attack, stand_in), race_in_peace())

    asyncio.run(play())
    assert siege.beside.seconds[RACED] == [2.0]
    assert siege.calm.seconds[RACED] == [4.0]
    # Before the attackers, and after them: a stand-in comes and leaves while they are away.
    assert sides == [("came", False), ("left", False)] * 2


def test_a_report_tells_a_bar_that_is_not_held() -> None:
    log, wrong, late = Log("lost"), Log("lost"), Log()
    held = log.result("a", "3 times", [noted("seen", 2.5), at_most("s", 1.0, 2.0)])
    wrong.flaw("lost", "x was lost")
    broken = wrong.result("b", "once")
    late.took("until idle", 2.0)
    slow = late.result("c", "once", late.longest(1.0))
    assert (held.passed, broken.passed, slow.passed) == (True, False, False)
    assert (broken.sound, slow.sound) == (False, True)
    told = as_markdown([held, broken])
    assert "| | s | 1.0 | at most 2 | passed |" in told
    assert "| | lost | 1 | none | **FAILED** |" in told
    assert "- x was lost" in told
    assert read_json(as_json([held, broken])) == [held, broken]
