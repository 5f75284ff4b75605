"""Who is racing: at most one race for each visitor, one on the machine at a time, in line.

Each race is driven by a thread of its own, so that a reader who vanishes (a closed tab, a lost
connection) can never hold up the line.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from backend.errors import DerbyError, explain
from backend.events import Event, Failed
from backend.racing.commands import Command, ForgetVisitor, all_stopped
from backend.racing.hosts.host import Host
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import Column
from backend.web.queue import RaceQueue

#: Seconds between two looks at a race: about as often as a page can be redrawn with profit.
PERIOD = 0.12
_TURN = 0.05

#: Races that may wait at once; beyond it, an honest refusal is better than a long wait.
MAX_WAITING = 32


@dataclass(frozen=True, slots=True)
class Frame:
    """A race at a moment: its board, and how many races go first. Both may move on later."""

    board: Scoreboard
    ahead: int


@dataclass
class _Run:
    commands: Sequence[Command]
    ticket: object
    stopped: threading.Event = field(default_factory=threading.Event)
    events: SimpleQueue[Event | None] = field(default_factory=SimpleQueue)


class Visitors:
    """Thread-safe. A visitor is any string that is theirs alone, such as a session hash."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._line = RaceQueue()
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}
        self._last: dict[str, tuple[Race, Scoreboard]] = {}

    def last(self, visitor: str) -> tuple[Race, Scoreboard]:
        """The visitor's last race and its board. Raises DerbyError if there is none or it runs."""
        with self._lock:
            found = self._last.get(visitor)
        if found is None:
            raise DerbyError("Nothing has run yet: run a race first.")
        if not found[1].ended:
            raise DerbyError("The race is still running: stop it first, or wait for its end.")
        return found

    def leave(self, visitor: str) -> None:
        """Forget a visitor who has gone, with all that is kept of theirs, and end their race."""
        self.stop(visitor)
        with self._lock:
            known = self._last.pop(visitor, None)
        if known is not None:
            run = _Run((ForgetVisitor(visitor),), self._line.join())
            threading.Thread(target=self._drive, args=(visitor, run), daemon=True).start()

    async def save(self, visitor: str, command: Command, column: Column) -> Scoreboard:
        """Carry out a command on one column, beside the visitor's last race; its board."""
        run = self._begin(visitor, (command,))
        board = Scoreboard([column])
        while not _fold(run.events, board):
            await asyncio.sleep(PERIOD)
        return board

    def stop(self, visitor: str) -> None:
        """End this visitor's race, waiting or running, if there is one."""
        with self._lock:
            run = self._runs.get(visitor)
        if run is not None:
            run.stopped.set()

    @property
    def count(self) -> int:
        """Visitors who race or wait."""
        with self._lock:
            return len(self._runs)

    async def watch(
        self, visitor: str, race: Race, before: Sequence[Command] = ()
    ) -> AsyncIterator[Frame]:
        """Run a race after the commands `before`, ending the visitor's earlier one; a frame now and
        then, and one at the end.

        Closing or cancelling the iterator stops the race. Raises DerbyError if the line is full.
        """
        run = self._begin(visitor, (*before, race))
        board = Scoreboard(race.columns)
        with self._lock:
            self._last[visitor] = (race, board)
        try:
            ended = False
            while not ended:
                ahead = self._line.ahead(run.ticket)
                ended = _fold(run.events, board)
                yield Frame(board, ahead)
                if not ended:
                    await asyncio.sleep(PERIOD)
        finally:
            run.stopped.set()

    def _begin(self, visitor: str, commands: Sequence[Command]) -> _Run:
        with self._lock:
            earlier = self._runs.get(visitor)
            if earlier is not None:
                earlier.stopped.set()
            elif len(self._runs) > MAX_WAITING:
                raise DerbyError(f"{MAX_WAITING} races are waiting already: try again in a minute.")
            run = self._runs[visitor] = _Run(commands, self._line.join())
        threading.Thread(target=self._drive, args=(visitor, run), daemon=True).start()
        return run

    def _drive(self, visitor: str, run: _Run) -> None:
        """Wait for the run's turn, run it, and leave the line, come what may."""
        try:
            while self._line.ahead(run.ticket) and not run.stopped.wait(_TURN):
                pass
            for command in run.commands:
                for event in self._carried_out(command, run.stopped):
                    run.events.put(event)
        finally:
            self._line.leave(run.ticket)
            with self._lock:
                if self._runs.get(visitor) is run:
                    del self._runs[visitor]
            run.events.put(None)

    def _carried_out(self, command: Command, stopped: threading.Event) -> Iterator[Event]:
        if stopped.is_set():
            yield from all_stopped(command)
            return
        try:
            yield from self._host.stream(command, stopped.is_set)
        except Exception as error:
            sentence = explain(error)
            for column in range(command.width):
                yield Failed(column, sentence)


def _fold(events: SimpleQueue[Event | None], board: Scoreboard) -> bool:
    """Fold in what has happened since the last look; true once the race is over."""
    try:
        while (event := events.get_nowait()) is not None:
            board.add(event)
    except Empty:
        return False
    return True
