"""A page whose network goes away in the middle of a race and comes back: nothing is lost."""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import psutil
from browser import ARGUMENTS, CHROMIUM, Visitor, launched
from playwright.sync_api import Browser, Error
from soak.browsing import read_board
from soak.crowd import expected
from soak.report import Figure, Result, none_of, result, within
from soak.server import Server, private_cache

#: Seconds after which the race must be caught up once the network is back.
CAUGHT_UP = 30.0

#: Tokens of the race, at 20 ms each and two columns: it outlasts the shortest gap.
TOKENS = 100


class Proxy:
    """Passes bytes between a browser and a server, until it is told to hold or to cut them."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._passing = asyncio.Event()
        self._passing.set()
        self._refusing = False
        self._ended = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()
        listening = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(listening)), daemon=True
        )
        self._thread.start()
        listening.wait()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def hold(self) -> None:
        """Let no byte through; connections stay open."""
        self._loop.call_soon_threadsafe(self._passing.clear)

    def cut(self) -> None:
        """End all connections, and every new one."""

        def act() -> None:
            self._refusing = True
            for writer in self._open:
                writer.transport.abort()

        self._loop.call_soon_threadsafe(act)

    def restore(self) -> None:
        def act() -> None:
            self._refusing = False
            self._passing.set()

        self._loop.call_soon_threadsafe(act)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    async def _serve(self, listening: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        listening.set()
        await self._ended.wait()
        # What still passes is cancelled as the loop ends, and closes its sockets then.
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._until_passed(writer), contextlib.suppress(OSError):
            if self._refusing:
                return
            there, to = await asyncio.open_connection("127.0.0.1", self._to)
            with self._until_passed(to):
                await asyncio.gather(self._pass(reader, to), self._pass(there, writer))

    @contextlib.contextmanager
    def _until_passed(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        """Let `cut` end a connection, and leave it closed."""
        self._open.add(writer)
        try:
            yield
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await self._passing.wait()
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()


@dataclass
class Case:
    """One page, and how its network goes away and comes back."""

    kind: str
    visitor: Visitor
    away: Callable[[], object]
    back: Callable[[], object]
    seconds: list[float] = field(default_factory=list)


def network(
    gaps: Sequence[float] = (2.0, 30.0, 300.0),
    kinds: Sequence[str] = ("offline", "held", "cut", "asleep"),
) -> Result:
    """Take the network away for so many seconds, in every way, in the middle of a race."""
    lost: list[str] = []
    broken: list[str] = []
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
            waited = _gap(cases, gap, lost)
            figures += [
                within(f"seconds to catch up, {kind} for {gap:g} s", seconds, CAUGHT_UP)
                for kind, seconds in waited.items()
            ]
        broken = [entry for server in servers for entry in server.broken]
    figures += [
        none_of("races that were lost or cut short", lost),
        none_of("tracebacks in the servers' logs", broken),
    ]
    size = f"{', '.join(kinds)} for {', '.join(f'{gap:g}' for gap in gaps)} s"
    return result("network", size, figures, [*lost, *broken])


def _gap(cases: Sequence[Case], gap: float, lost: list[str]) -> dict[str, float]:
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
    return {case.kind: _caught_up(case, prompt, gap, lost) for case in cases}


def _caught_up(case: Case, prompt: str, gap: float, lost: list[str]) -> float:
    """Seconds until the page shows the whole race, CAUGHT_UP at most."""
    waited, right = 0.0, expected(prompt)[:TOKENS]
    board = read_board(case.visitor.page)
    while waited < CAUGHT_UP and board["phase"] != "ended":
        case.visitor.page.wait_for_timeout(250)
        waited += 0.25
        board = read_board(case.visitor.page)
    texts = [column["text"] for column in board["columns"]]
    if board["phase"] != "ended" or texts != [right] * 2:
        lost.append(
            f"{case.kind} for {gap:g} s: {board['phase']}, {board['status']!r}, "
            f"{board['alert']!r}, texts of {[len(t) for t in texts]} of {len(right)} characters"
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
