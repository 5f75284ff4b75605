"""A real HTTP server that answers as it is told to: what servers send, well or badly."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

EVENTS = "text/event-stream; charset=utf-8"


@dataclass
class Script:
    """What to answer. `pieces` are sent one by one; then the stream ends in order, unless it
    `breaks`. `wrong` tells of a request whether it is called so. `held` is waited for before
    the last piece, `silent` before anything of an answer. `metrics` makes status, kind and text of
    what stands elsewhere, /metrics among it.
    """

    pieces: Iterable[bytes] = ()
    status: int = 200
    kind: str = EVENTS
    breaks: bool = False
    wrong: Callable[[dict[str, Any]], bool] = lambda _: False
    models: bytes = b'{"data": [{"id": "tiny"}]}'
    metrics: Callable[[], tuple[int, str, bytes]] = lambda: (404, "text/plain", b"not found")
    held: threading.Event | None = None
    silent: threading.Event | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    gets: list[tuple[str, str | None]] = field(default_factory=list)
    running: int = 0
    together: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def said(*messages: dict[str, Any], done: bool = True) -> list[bytes]:
    """Messages as events, one piece each."""
    ends = [b"data: [DONE]\n\n"] if done else []
    return [b"data: " + json.dumps(each).encode() + b"\n\n" for each in messages] + ends


class _Handler(BaseHTTPRequestHandler):
    script: Script
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        pass

    def do_GET(self) -> None:
        with self.script.lock:
            self.script.gets.append((self.path, self.headers["Authorization"]))
        if self.path.endswith("/models"):
            status, kind, text = 200, "application/json", self.script.models
        else:
            status, kind, text = self.script.metrics()
        with suppress(ConnectionError):
            self._head(status, kind)
            self._chunk(text)
            self._chunk(b"")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.script.lock:
            self.script.asked.append(body)
            self.script.paths.append(self.path)
            self.script.keys.append(self.headers["Authorization"])
            self.script.running += 1
            self.script.together = max(self.script.together, self.script.running)
        try:
            self._answer(body)
        except ConnectionError:
            self.close_connection = True
        finally:
            with self.script.lock:
                self.script.running -= 1

    def _answer(self, body: dict[str, Any]) -> None:
        if self.script.wrong(body):
            self._head(422, "application/json")
            self._chunk(b'{"error": {"message": "unknown field"}}')
            self._chunk(b"")
            return
        if self.script.silent is not None:
            self.script.silent.wait()
        self._head(self.script.status, self.script.kind)
        pieces = list(self.script.pieces)
        for number, piece in enumerate(pieces):
            if self.script.held is not None and number == len(pieces) - 1:
                self.script.held.wait()
            self._chunk(piece)
        if self.script.breaks:
            self.close_connection = True
        else:
            self._chunk(b"")

    def _head(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


@contextmanager
def scripted(script: Script) -> Iterator[str]:
    """The address of a server that follows the script."""
    handler = type("Handler", (_Handler,), {"script": script})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        for waited in (script.held, script.silent):
            if waited is not None:
                waited.set()
        server.shutdown()
        server.server_close()
        thread.join()
