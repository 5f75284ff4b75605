"""A way to a server whose network can go away."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator


class Proxy:
    """Passes bytes between a browser and a server, until it is told to hold or to cut them. While
    it is `deaf`, what is asked arrives, and no answer comes back.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._passing = asyncio.Event()
        self._passing.set()
        self._refusing = False
        self.deaf = False
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
                answering = self._pass(there, writer, answers=True)
                await asyncio.gather(self._pass(reader, to), answering)

    @contextlib.contextmanager
    def _until_passed(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        """Let `cut` end a connection, and leave it closed."""
        self._open.add(writer)
        try:
            yield
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool = False
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await self._passing.wait()
                if answers and self.deaf:
                    continue
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()
