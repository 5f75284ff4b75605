"""A page whose network goes away in the middle of a race and comes back: nothing is lost."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import psutil
from browser import ARGUMENTS, CHROMIUM, Visitor, launched
from playwright.sync_api import Browser, Error
from proxy import Proxy
from soak.crowd import expected
from soak.report import BROKEN, Figure, Log, Result, within
from soak.server import Server, private_cache

#: All that is read of a board, in one look.
_READ = """() => ({
  phase: document.querySelector(".dd-board").dataset.phase,
  status: document.querySelector(".dd-status").textContent,
  alert: document.querySelector(".dd-alert").textContent,
  texts: [...document.querySelectorAll(".dd-flow")].map((flow) => flow.textContent),
})"""

#: Seconds after which the race must be caught up once the network is back.
CAUGHT_UP = 30.0

#: Tokens of the race, at 20 ms each and two columns: it outlasts the shortest gap.
TOKENS = 100


LOST = "races that were lost or cut short"


@dataclass
class Case:
    """One page, and how its network goes away and comes back."""

    kind: str
    visitor: Visitor
    away: Callable[[], object]
    back: Callable[[], object]


def network(
    gaps: Sequence[float] = (2.0, 30.0, 300.0),
    kinds: Sequence[str] = ("offline", "held", "cut", "asleep"),
) -> Result:
    """Take the network away for so many seconds, in every way, in the middle of a race."""
    log = Log(LOST)
    figures: list[Figure] = []
    with ExitStack() as opened:
        cache = opened.enter_context(private_cache())
        browser = opened.enter_context(launched())
        servers = [opened.enter_context(Server("--fake", cache=cache)) for _ in kinds]
        cases = [
            opened.enter_context(_case(kind, server, browser))
            for kind, server in zip(kinds, servers, strict=True)
        ]
        for gap in gaps:
            waited = _gap(cases, gap, log)
            figures += [
                within(f"seconds to catch up, {kind} for {gap:g} s", seconds, CAUGHT_UP)
                for kind, seconds in waited.items()
            ]
        log.wrong[BROKEN] += [entry for server in servers for entry in server.broken]
    size = f"{', '.join(kinds)} for {', '.join(f'{gap:g}' for gap in gaps)} s"
    return log.result("network", size, figures)


def _gap(cases: Sequence[Case], gap: float, log: Log) -> dict[str, float]:
    """One race in each case, and a gap in the middle of all: seconds until each has caught up."""
    prompt = f"Without a network for {gap:g} s"
    for case in cases:
        case.visitor.columns("kv", "lookup:k=2")
        case.visitor.ask(prompt, tokens=TOKENS, model="fake-slow")
        with contextlib.suppress(Error):  # one that has ended already is judged all the same
            case.visitor.wait_decoding()
        case.away()
    threading.Event().wait(gap)
    for case in cases:
        case.back()
    return {case.kind: _caught_up(case, prompt, gap, log) for case in cases}


def _caught_up(case: Case, prompt: str, gap: float, log: Log) -> float:
    """Seconds until the page shows the whole race, CAUGHT_UP at most."""
    waited, right = 0.0, expected(prompt)[:TOKENS]
    board = case.visitor.page.evaluate(_READ)
    while waited < CAUGHT_UP and board["phase"] != "ended":
        case.visitor.page.wait_for_timeout(250)
        waited += 0.25
        board = case.visitor.page.evaluate(_READ)
    texts = board["texts"]
    if board["phase"] != "ended" or texts != [right] * 2:
        log.flaw(
            LOST,
            f"{case.kind} for {gap:g} s: {board['phase']}, {board['status']!r}, "
            f"{board['alert']!r}, texts of {[len(t) for t in texts]} of {len(right)} characters",
        )
    return waited


@contextlib.contextmanager
def _case(kind: str, server: Server, browser: Browser) -> Iterator[Case]:
    with ExitStack() as opened:
        ours: list[psutil.Process] = []
        if kind == "asleep":  # a browser of its own, which can be halted
            before = set(psutil.Process().children(recursive=True))
            browser = browser.browser_type.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
            opened.callback(browser.close)
            ours = [p for p in psutil.Process().children(recursive=True) if p not in before]
        proxy = Proxy(server.port)
        opened.callback(proxy.close)
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        opened.callback(context.close)
        visitor = Visitor(context, proxy.address)
        ways: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "offline": (lambda: context.set_offline(True), lambda: context.set_offline(False)),
            "held": (proxy.hold, proxy.restore),
            "cut": (proxy.cut, proxy.restore),
            "asleep": (
                lambda: _signal(ours, signal.SIGSTOP),
                lambda: _signal(ours, signal.SIGCONT),
            ),
        }
        yield Case(kind, visitor, *ways[kind])


def _signal(processes: Sequence[psutil.Process], sign: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(sign)
