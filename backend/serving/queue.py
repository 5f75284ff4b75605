"""The line of requests: one race runs at a time, so that no request spoils another's timings."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from backend.events import Event, failures
from backend.limits import Limits
from backend.racing.hosts.host import Host
from backend.racing.race import Race
from backend.web.bodies import RefusedError

log = logging.getLogger(__name__)


class RaceQueue:
    """First come, first served. Belongs to one event loop; races run in a thread of its own."""

    def __init__(self, host: Host, limits: Limits) -> None:
        self._host = host
        self._limits = limits
        self._thread = ThreadPoolExecutor(1, "races")
        self._length = 0  # races that run or wait

    async def events(self, race: Race) -> AsyncGenerator[Event, None]:
        """The race's events once its turn has come. It ends, or leaves the line, if the generator
        is closed; whoever reads slowly keeps nobody waiting.

        Raises RefusedError if the line is full.
        """
        if self._length > self._limits.waiting:
            raise RefusedError(
                f"{self._limits.waiting} requests are waiting already: try again in a few seconds.",
                503,
                code="line_full",
            )
        loop, gone = asyncio.get_running_loop(), threading.Event()
        found: asyncio.Queue[Event | None] = asyncio.Queue()

        def tell(what: Callable[..., object], *arguments: object) -> None:
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(what, *arguments)

        def left() -> None:
            self._length -= 1
            found.put_nowait(None)

        self._length += 1
        running = self._thread.submit(
            self._carry_out, race, lambda event: tell(found.put_nowait, event), gone.is_set
        )
        running.add_done_callback(lambda _: tell(left))
        try:
            while (event := await found.get()) is not None:
                yield event
        finally:
            gone.set()
            running.cancel()  # if it still waits

    def _carry_out(
        self, race: Race, emit: Callable[[Event], None], gone: Callable[[], bool]
    ) -> None:
        """Run a race; it is ended early if nobody wants it, or if it takes long and others wait."""
        deadline = time.monotonic() + self._limits.race_seconds

        def stopped() -> bool:
            return gone() or (self._length > 1 and time.monotonic() > deadline)

        try:
            for event in self._host.stream(race, stopped):
                emit(event)
        except Exception as error:
            for event in failures((0,), error):
                emit(event)
