"""The server's port: answers until the process is asked to end, and then ends at once."""

from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

#: Connections beside those of requests that run or wait.
SPARE = 64

#: Seconds that answers have to end by themselves once the races have.
FAREWELL = 1


class _Server(uvicorn.Server):
    """Calls `ending` when asked to end, before it waits for its answers."""

    def __init__(self, config: uvicorn.Config, ending: Callable[[], None]) -> None:
        super().__init__(config)
        self._ending = ending

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            self._ending()
        super().handle_exit(sig, frame)


def server_of(app: ASGIApp, waiting: int, ending: Callable[[], None]) -> uvicorn.Server:
    """What answers, so many requests `waiting` at most, once it is run with a socket that listens.

    SIGINT and SIGTERM end it, and are raised again then. `ending` is called in between, from the
    signal's handler: it must not wait.
    """
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        limit_concurrency=waiting + SPARE,
        timeout_graceful_shutdown=FAREWELL,
    )
    return _Server(config, ending)
