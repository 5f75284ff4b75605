"""The visitors' races: at most one race for each visitor, one at a time, in line.

A thread carries out each race when its turn has come. A reader that leaves does not end a race: a
visitor without a connection keeps their races for as long as the limits say.
"""

import asyncio
import logging
import secrets
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue

from backend.errors import DerbyError, explain
from backend.events import Event, Preparing, failures
from backend.limits import PRIVATE, Limits
from backend.racing.commands import Command, ForgetVisitor, all_stopped
from backend.racing.hosts.host import Host
from backend.racing.race import Race
from backend.records.file import as_bytes, from_bytes
from backend.records.record import RaceRecord, recorded
from backend.records.record import board as board_of
from backend.results.scoreboard import Scoreboard
from backend.web.presence import Everybody, Presence
from backend.web.quota import Quota

log = logging.getLogger(__name__)

#: Seconds between two looks at a race: a browser on the same machine takes its time from the race,
#: and text that grows four times a second is seen to grow.
PERIOD = 0.25

#: Seconds between two looks at a race in its first second, until there is a token to be seen.
SOON, FIRST = 0.05, 1.0

#: Seconds between two looks at a race that waits for its turn.
WAITING_PERIOD = 0.5

#: Seconds for which a visitor without a connection keeps their place while others wait.
GRACE = 10.0

#: Visitors whose last race is kept with its board; of the others, its record is.
BOARDS = 16

#: Earlier runs of a race whose results are kept.
SEVERAL = 9

#: Seconds between two looks at who has gone.
SWEEP = 1.0

OUT_OF_LINE = (
    f"This race was removed from the queue because its page had no connection for {GRACE:.0f} s. "
    f"Run it again."
)
GAVE_WAY = (
    "This race was removed from the full queue because its page never had a connection. "
    "Run it again."
)
UNWATCHED = (
    f"This race was stopped because its page had no connection for {GRACE:.0f} s and others "
    f"wait. Its results are kept."
)


#: The speed-up of each column of a race.
Speedups = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """A race at a moment. Later races have higher numbers, even after a restart of the server.
    `ahead` is the number of races that go first. `note` says why somebody else ended the race, or
    is "". The board may change later, unless the race is `over`. `before` are the results of the
    same race when the visitor ran it before.
    """

    race: Race
    number: int
    board: Scoreboard
    ahead: int
    note: str
    over: bool
    before: Sequence[Speedups] = ()


@dataclass(eq=False)
class _Run:
    """The commands of a visitor. Its board is changed in the event loop only, its other fields
    under the lock of `Visitors`. The commands run in the `context` of the request that asked for
    them, because a host that lends GPUs asks for whom it does.
    """

    visitor: str
    commands: Sequence[Command]
    shown: Scoreboard | None  # None: shelved
    stopped: threading.Event = field(default_factory=threading.Event)
    events: SimpleQueue[Event | None] = field(default_factory=SimpleQueue)
    joined: float = 0.0  # when it stood in line
    begun: float | None = None  # when its turn came
    note: str = ""
    wait: str = ""  # what it was told that it waits for, if not for others
    seen: list[Event] = field(default_factory=list)  # what is on the board
    broken: bool = False  # its board could not take what happened
    over: bool = False
    folding: asyncio.Task[None] | None = None  # kept, as the event loop does not
    context: Context = field(default_factory=copy_context)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    woken: asyncio.Event = field(default_factory=asyncio.Event)  # set: look at the events now
    folded: asyncio.Event = field(default_factory=asyncio.Event)  # another one after each look

    @property
    def board(self) -> Scoreboard:
        assert self.shown is not None  # noqa: S101
        return self.shown

    def wake(self) -> None:
        """Have the events folded now: its turn came, or it ends. Thread-safe."""
        with suppress(RuntimeError):  # the loop is closed: nobody looks any more
            self.loop.call_soon_threadsafe(self.woken.set)

    def tell(self) -> None:
        """Wake those who wait for the next look."""
        self.folded.set()
        self.folded = asyncio.Event()

    async def finish(self) -> None:
        """All its events are on the board."""


@dataclass(eq=False, kw_only=True)
class _LastRace(_Run):
    """A visitor's last race, whose events are kept. Each stay, from a visitor's first race until
    they leave, has a new scope that nobody is told. So somebody who knows the visitor's name finds
    nothing that an earlier stay left behind.
    """

    race: Race
    number: int
    scope: str
    record: bytes = b""  # once it is over, compressed
    before: tuple[Speedups, ...] = ()  # of the same race, run before, the latest one last
    results: tuple[Speedups, ...] = ()  # those, and this one's once it is over

    @property
    def board(self) -> Scoreboard:
        """The board of the race. If the race was put away, the board is made anew from its
        record.
        """
        if (shown := self.shown) is None:
            shown = board_of(from_bytes(zlib.decompress(self.record)))
            self.shown = shown
        return shown

    async def finish(self) -> None:
        board = self.board
        if all(score.state == "done" for score in board.scores) and not board.noisy:
            speedups = tuple(board.speedup(i) for i in range(len(board.columns)))
            self.results = (*self.before, speedups)[-SEVERAL:]
        self.record = await asyncio.to_thread(_packed, self.race, self.seen)
        self.seen = []

    def shelve(self) -> None:
        """Keep the record of a race that is over, and no board, which takes some fifty times the
        memory.
        """
        if self.over and self.record:
            self.shown = None


class Visitors:
    """The races of all visitors. Thread-safe. A visitor is a string that only they have, such as a
    session hash. `presence` knows who is connected; without it, nobody ever counts as absent.
    `leavers` are called with each visitor who has been absent for too long.
    """

    def __init__(
        self,
        host: Host,
        limits: Limits = PRIVATE,
        presence: Presence | None = None,
    ) -> None:
        self._host = host
        self._machine = threading.Lock()  # held while a command runs
        self._limits = limits
        self._presence = presence or Everybody()
        self.leavers: list[Callable[[str], None]] = []
        self._quota = Quota(limits.races_per_hour)
        self._line: list[_Run] = []  # in the order in which they came, those that run included
        self._served: dict[str, float] = {}  # when the last turn of each address came
        self._lock = threading.RLock()
        self._runs: dict[str, _Run] = {}
        self._series: dict[str, threading.Event] = {}  # set once a visitor's series is stopped
        self._last: OrderedDict[str, _LastRace] = OrderedDict()  # the latest one last
        self._number = 0
        self._leaving: list[str] = []  # scopes whose caches must be forgotten
        self._presence.greet(self._drive)
        threading.Thread(target=self._sweep_always, daemon=True).start()

    def last(self, visitor: str) -> tuple[Race, Scoreboard]:
        """The visitor's last race and its board. Raises DerbyError if there is none or it runs."""
        with self._lock:
            found = self._last.get(visitor)
        if found is None:
            raise DerbyError("Nothing has run yet: run a race first.")
        if not found.board.ended:
            raise DerbyError("The race is still running: stop it first, or wait for its end.")
        return found.race, found.board

    def record(self, visitor: str) -> RaceRecord:
        """The record of the visitor's last race. Reads it, so not for the event loop. Raises
        DerbyError if there is none or it runs.
        """
        self.last(visitor)
        with self._lock:
            packed = self._last[visitor].record
        if not packed:
            raise DerbyError("This race has no record yet: try again in a moment.")
        return from_bytes(zlib.decompress(packed))

    def leave(self, visitor: str) -> None:
        """Forget a visitor who has gone and all that was kept for them, and end their race."""
        with self._lock:
            self.stop(visitor)
            if (kept := self._last.pop(visitor, None)) is not None:
                self._leaving.append(kept.scope)
                self._drive()

    def stop(self, visitor: str) -> None:
        """End this visitor's race, waiting or running, and their series of races, if any."""
        with self._lock:
            if (series := self._series.get(visitor)) is not None:
                series.set()
            self._replace(visitor)

    def _replace(self, visitor: str) -> None:
        """End the visitor's race, if there is one, because another may begin."""
        with self._lock:
            if (run := self._runs.get(visitor)) is not None:
                self._end(run)

    @contextmanager
    def series(self, visitor: str) -> Iterator[Callable[[], bool]]:
        """Whether the visitor has stopped, also between two races of a series."""
        stopped = self._series[visitor] = threading.Event()
        try:
            yield stopped.is_set
        finally:
            with self._lock:
                if self._series.get(visitor) is stopped:
                    del self._series[visitor]

    @property
    def waiting(self) -> int:
        """Races in line, those that run not among them."""
        with self._lock:
            return sum(run.begun is None for run in self._line)

    @property
    def preparing(self) -> str:
        """What is still being prepared before there can be a race; "": nothing."""
        return self._host.preparing

    @property
    def count(self) -> int:
        """Visitors who race or wait."""
        with self._lock:
            return len(self._runs)

    async def measure(self, visitor: str, race: Race) -> Scoreboard:
        """Run a race of a benchmark while the visitor's last race stays as it is, and return its
        board. It keeps no session. Raises DerbyError as `watch` does.
        """
        with self._lock:
            self._quota.require(visitor, self._presence.now())
            self._quota.count(visitor, self._presence.now())
        return await self._carried(_Run(visitor, (race,), Scoreboard(race.columns)))

    async def _carried(self, run: _Run) -> Scoreboard:
        """Have a run carried out, in the place of the visitor's earlier one; its board."""
        self._begin(run)
        try:
            while not run.over:
                await run.folded.wait()
        finally:
            with self._lock:
                self._end(run)  # whoever awaited it has gone
        return run.board

    def begin(self, visitor: str, race: Race, before: Sequence[Command] = ()) -> None:
        """Have a race run after the commands `before`, and end the visitor's earlier race. `follow`
        shows the race. Its scope is always the visitor's own. Call it in the event loop. Raises
        DerbyError if the line is full or the visitor has used up their races.
        """
        with self._lock:
            self._quota.require(visitor, self._presence.now())
            if (series := self._series.get(visitor)) is not None:
                series.set()  # also between two of its races
            last = self._last.get(visitor)
            scope = last.scope if last else secrets.token_hex(16)
            race = replace(race, visitor=scope)
            results = last.results if last and last.race == race else ()
            run = _LastRace(
                visitor,
                (*before, race),
                Scoreboard(race.columns),
                race=race,
                number=max(self._number + 1, time.time_ns() // 1_000_000),
                scope=scope,
                before=results,
                results=results,
            )
            self._begin(run)
            self._quota.count(visitor, self._presence.now())
            self._keep(run)

    async def watch(
        self, visitor: str, race: Race, before: Sequence[Command] = ()
    ) -> AsyncIterator[Frame]:
        """Begin a race and follow it. It goes on if the iterator is closed. Raises DerbyError as
        `begin` does.
        """
        self.begin(visitor, race, before)
        async for frame in self.follow(visitor):
            yield frame

    def look(self, visitor: str) -> Frame:
        """The visitor's last race as it is now, whether it runs or has ended. Raises DerbyError if
        none is kept.
        """
        self.seen(visitor)
        return self._frame(self._kept(visitor))

    def number(self, visitor: str) -> int:
        """The number of the visitor's last race; 0: none is kept."""
        with self._lock:
            kept = self._last.get(visitor)
        return kept.number if kept else 0

    def _kept(self, visitor: str) -> _LastRace:
        with self._lock:
            run = self._last.get(visitor)
        if run is None:
            raise DerbyError("Your race is no longer in memory: run it again.")
        return run

    async def follow(self, visitor: str) -> AsyncIterator[Frame]:
        """Yield a frame of the visitor's last race whenever something has changed, and a last one
        when it is over, even if the visitor has begun another race meanwhile. Raises DerbyError if
        no race is kept.
        """
        run, seen, over = self._kept(visitor), None, False
        while not over:
            folded = run.folded
            over, now = run.over, (len(run.seen), self._ahead(run))
            if now != seen or over:
                yield self._frame(run)
                seen = now
            if not over:
                await _until_set(folded, PERIOD)

    def seen(self, visitor: str) -> None:
        """The visitor's page asks, whether or not it has another connection."""
        self._presence.seen(visitor)

    def sweep(self) -> None:
        """End the races that the limits end, and forget the visitors who have been absent for long.

        Called once a second.
        """
        with self._lock:
            for run in tuple(self._line):
                if run.begun is None and self._absence(run) >= GRACE:
                    self._put_out(run, OUT_OF_LINE)
            waiting = [run for run in tuple(self._line) if run.begun is None]
            if any(self._presence.met(run.visitor) for run in waiting):
                for run in tuple(self._line):
                    if run.begun is not None:
                        self._hurry(run)
            gone = self._presence.forget_absent(self._limits.absence_seconds)
            for visitor in gone:
                self.leave(visitor)
            self._drive()  # a machine may have joined
        for visitor in gone:
            for leave in self.leavers:
                leave(visitor)

    def _hurry(self, run: _Run) -> None:
        """End the running race if others have waited for it long enough."""
        seconds = self._limits.race_seconds
        if self._absence(run) >= GRACE:
            self._put_out(run, UNWATCHED)
        elif run.begun is not None and self._presence.now() - run.begun >= seconds:
            self._put_out(run, f"This race was stopped after {seconds} s because others wait.")

    def _absence(self, run: _Run) -> float:
        """Seconds for which the run's visitor has had no connection; 0 while there is one."""
        since = self._presence.absent_since(run.visitor)
        return 0.0 if since is None else max(0.0, self._presence.now() - since)

    def _sweep_always(self) -> None:
        while True:
            time.sleep(SWEEP)
            try:
                self.sweep()
            except Exception:
                log.exception("Absent visitors could not be removed.")

    def _begin(self, run: _Run) -> None:
        """Join the line, in the place of the visitor's earlier run. Raises DerbyError if the line
        is full.
        """
        with self._lock:
            if run.visitor in self._runs:
                self._replace(run.visitor)
            else:
                self._require_place(self._presence.address(run.visitor))
                if self.waiting >= self._limits.waiting:
                    self._make_room()
            self._presence.seen(run.visitor)
            self._runs[run.visitor] = run
            run.joined = self._presence.now()
            self._line.append(run)
            self._drive()
        run.folding = asyncio.create_task(self._fold(run))

    def _make_room(self) -> None:
        """Remove the newest run from the line whose visitor never had a connection."""
        for run in reversed(tuple(self._line)):
            if run.begun is None and not self._presence.met(run.visitor):
                self._put_out(run, GAVE_WAY)
                return
        # Beyond it, an honest refusal is better than a long wait.
        raise DerbyError(
            f"{self._limits.waiting} races are waiting already: try again in a minute."
        )

    def _require_place(self, address: str) -> None:
        """Raise DerbyError if as many races of this address wait as may."""
        most = self._limits.waiting_per_address
        places = [self._presence.address(run.visitor) for run in self._line if run.begun is None]
        if address and places.count(address) >= most:
            raise DerbyError(
                f"{most} races of your address are waiting already: try again in a minute."
            )

    def _in_turn(self) -> list[_Run]:
        """The line in the order of turns. After each race of an address, its other waiting runs go
        behind everybody who has come by then.
        """

        def place(run: _Run) -> tuple[bool, float]:
            served = self._served.get(self._presence.address(run.visitor), 0.0)
            return run.begun is None, max(run.joined, served) if run.begun is None else 0.0

        return sorted(self._line, key=place)

    def _keep(self, run: _LastRace) -> None:
        """Remember the visitor's last race, and forget the oldest ones beyond the limit."""
        self._number = run.number
        self._last[run.visitor] = run
        self._last.move_to_end(run.visitor)
        for other in list(self._last)[: max(0, len(self._last) - self._limits.visitors)]:
            if other not in self._runs:
                self.leave(other)
        for other in tuple(self._last.values())[:-BOARDS]:
            other.shelve()

    def _put_out(self, run: _Run, note: str) -> None:
        """Stop a run although its visitor did not ask for that. `note` tells them why."""
        if not run.stopped.is_set():
            run.note = note
            self._end(run)

    def _end(self, run: _Run) -> None:
        """Stop a run; one that waits leaves the line at once."""
        run.stopped.set()
        if run.begun is None:
            for command in run.commands:
                for event in all_stopped(command):
                    run.events.put(event)
            self._take_out(run)

    def _take_out(self, run: _Run) -> None:
        with self._lock:
            if run in self._line:
                self._line.remove(run)
            if not self._line:
                self._served.clear()
            if self._runs.get(run.visitor) is run:
                del self._runs[run.visitor]
            run.context = Context()  # the request is not kept as long as the race
            run.events.put(None)
            run.wake()

    def _drive(self) -> None:
        """Forget absent visitors, then begin the next race if the machine is free. A race begins
        only once its visitor is connected, so somebody who asks and hangs up takes nobody's time.
        """
        with self._lock:
            for scope in tuple(self._leaving):
                if self._machine.acquire(blocking=False):
                    self._leaving.remove(scope)
                    threading.Thread(target=self._forget, args=(scope,), daemon=True).start()
            for run in self._in_turn():
                if run.begun is not None or not self._presence.listens(run.visitor):
                    continue
                if not self._machine.acquire(blocking=False):
                    self._tell_wait(run)
                    continue
                run.begun = self._presence.now()
                if address := self._presence.address(run.visitor):
                    self._served[address] = run.begun
                run.wake()
                carry_out = partial(run.context.run, self._carry_out, run)
                threading.Thread(target=carry_out, daemon=True).start()

    def _tell_wait(self, run: _Run) -> None:
        """Tell a visitor who is first in line why the machine is not available."""
        if self._ahead(run) == 0 and (wait := self._host.preparing) != run.wait:
            run.wait = wait
            run.events.put(Preparing(wait))

    def _forget(self, scope: str) -> None:
        try:
            for _ in self._carried_out(ForgetVisitor(scope), threading.Event()):
                pass
        finally:
            self._free()

    def _free(self) -> None:
        """Give the machine back and start the next race."""
        with self._lock:
            self._machine.release()
            self._drive()

    def _carry_out(self, run: _Run) -> None:
        try:
            for command in run.commands:
                for event in self._carried_out(command, run.stopped):
                    run.events.put(event)
        finally:
            with self._lock:
                self._take_out(run)
                self._free()

    def _carried_out(self, command: Command, stopped: threading.Event) -> Iterator[Event]:
        if stopped.is_set():
            yield from all_stopped(command)
            return
        try:
            yield from self._host.stream(command, stopped.is_set)
        except Exception as error:
            yield from failures(range(command.width), error)

    async def _fold(self, run: _Run) -> None:
        """Fold events into the run's board until it is over, whether or not anybody looks."""
        try:
            while True:
                while not run.events.empty():
                    event = run.events.get()
                    if event is None:
                        await run.finish()
                        return
                    self._add(run, event)
                run.tell()
                await _until_set(run.woken, self._pause(run))
                run.woken.clear()
        finally:
            run.over = True
            run.tell()

    def _pause(self, run: _Run) -> float:
        """Seconds until the next look."""
        if self._ahead(run):
            return WAITING_PERIOD
        written = any(score.length for score in run.board.scores)
        first = run.begun is not None and self._presence.now() - run.begun < FIRST
        return SOON if first and not written else PERIOD

    def _add(self, run: _Run, event: Event) -> None:
        """Put an event on the run's board. One that the board cannot take ends the run: its columns
        fail, and what else they do is not looked at.
        """
        if run.broken:
            return
        try:
            run.board.add(event)
        except Exception as error:
            run.broken = True
            sentence = explain(error)
            for score in run.board.scores:
                score.state, score.message = "failed", sentence
            with self._lock:
                self._end(run)
            return
        run.seen.append(event)

    def _frame(self, run: _LastRace) -> Frame:
        over = run.over
        note = run.note if over else ""
        return Frame(run.race, run.number, run.board, self._ahead(run), note, over, run.before)

    def _ahead(self, run: _Run) -> int:
        """How many races go before this one, those that run included."""
        with self._lock:
            waits = run.begun is None and run in self._line
            return self._in_turn().index(run) if waits else 0


async def _until_set(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, at most so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _packed(race: Race, events: Sequence[Event]) -> bytes:
    """A race that is over, as small as it is kept for its visitor; b"" if it cannot be recorded,
    which is logged and spoils nothing else.
    """
    try:
        return zlib.compress(as_bytes(recorded(race.request, race.columns, race.target, events)))
    except Exception as error:
        explain(error)
        return b""
