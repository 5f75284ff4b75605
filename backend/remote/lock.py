"""Lets one column at a time use a server; another thread may end that at any moment."""

import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from backend.errors import DerbyError

if TYPE_CHECKING:
    from httpx import Request

#: What httpx's transport says once it has a socket.
_CONNECTED = (".connect_tcp.complete", ".start_tls.complete")


class ServerLock:
    """Held while a column runs on the server at `url`, by one at a time: two at once would slow, or
    even end, one another. It may be entered once.
    """

    def __init__(self, url: str) -> None:
        self._server = _server_lock(url)
        self._lock = Lock()  # of all below
        self._sockets: list[socket.socket] = []
        self._held = self._ended = False

    def __enter__(self) -> Self:
        """Wait for it. Raises DerbyError if it has been ended meanwhile."""
        self._server.acquire()
        with self._lock:
            self._held = True
            ended = self._ended
        if ended:
            self.end()
            raise DerbyError("The race was stopped.")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """Break the column's connections off, so that whoever waits for them goes on with an error,
        and let the next column in.
        """
        with self._lock:
            self._ended = True
            held, self._held = self._held, False
            sockets = tuple(self._sockets)
        for each in sockets:
            _break_off(each)
        if held:
            self._server.release()

    def follow(self, request: "Request") -> None:
        """Take note of the connection that a request gets; a hook for httpx's requests."""
        request.extensions["trace"] = self._note

    def _note(self, happened: str, info: Mapping[str, Any]) -> None:
        if not happened.endswith(_CONNECTED):
            return
        made = info["return_value"].get_extra_info("socket")
        with self._lock:
            self._sockets.append(made)
            ended = self._ended
        if ended:
            _break_off(made)


def _break_off(connection: socket.socket) -> None:
    """Closing alone would leave a thread waiting that reads."""
    with suppress(OSError):  # it may be closed already
        connection.shutdown(socket.SHUT_RDWR)


@lru_cache(256)
def _server_lock(_url: str) -> Lock:
    """Held while some column uses the server at that address."""
    return Lock()
