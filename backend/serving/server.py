"""The server's port: answers until the process is asked to end, and then ends at once."""

import asyncio
from collections.abc import Callable
from types import FrameType

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Connections at a time. Of more, the one that has waited longest without a request is closed.
MOST_CONNECTIONS = 512

#: Seconds in which the head of a request must have come.
PATIENCE = 10.0

#: Seconds that answers have to end by themselves once the races have.
FAREWELL = 1


class _Connection(H11Protocol):
    """Closes a connection on which no request comes: uvicorn has a time-out only behind one.

    How many requests may wait is for the application to say: uvicorn's own limit counts
    connections, also those that ask for nothing.
    """

    due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            others = (each for each in self.connections if isinstance(each, _Connection))
            idle = [each for each in others if each.due is not None]
            min(idle, key=_Connection._deadline, default=self).hang_up()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(awaited=False)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def hang_up(self) -> None:
        self._expect(awaited=False)
        self.transport.close()

    def _deadline(self) -> float:
        return self.due.when() if self.due else 0.0

    def _look(self) -> None:
        """A request is awaited, too, of a client that goes on sending what was answered already."""
        ours, theirs = self.conn.our_state, self.conn.their_state
        sending = (ours, theirs) == (h11.DONE, h11.SEND_BODY)
        self._expect(awaited=sending or theirs is h11.IDLE)

    def _expect(self, *, awaited: bool) -> None:
        """Have the connection closed in time, if a request is awaited."""
        if not awaited and self.due is not None:
            self.due.cancel()
            self.due = None
        elif awaited and self.due is None:
            self.due = self.loop.call_later(PATIENCE, self.transport.close)


class _Server(uvicorn.Server):
    """Calls `ending` when asked to end, before it waits for its answers."""

    def __init__(self, config: uvicorn.Config, ending: Callable[[], None]) -> None:
        super().__init__(config)
        self._ending = ending

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            self._ending()
        super().handle_exit(sig, frame)


def server_of(app: ASGIApp, ending: Callable[[], None]) -> uvicorn.Server:
    """What answers once it is run with a socket that listens.

    SIGINT and SIGTERM end it, and are raised again then. `ending` is called in between, from the
    signal's handler: it must not wait.
    """
    config = uvicorn.Config(
        app,
        http=_Connection,
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=FAREWELL,
    )
    return _Server(config, ending)
