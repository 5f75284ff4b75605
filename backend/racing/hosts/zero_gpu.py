"""Runs races on a ZeroGPU Space, which lends a GPU for one call of a decorated generator.

Spaces fork this process for the call and run the generator there; what goes in and out is pickled.
So a command goes in, events come out as JSON, and a file says that they are still wanted.
"""

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from backend.errors import DerbyError, explain
from backend.events import Event, Preparing, from_json, to_json
from backend.limits import PRIVATE, Limits
from backend.racing.hosts.host import Command, ForgetVisitor, Stopped, one_at_a_time, with_ends
from backend.racing.hosts.inline import InlineHost

#: GPU seconds that a call declares: what Spaces suppose of a call that declares none.
SECONDS = 60


class ZeroGpuHost:
    """`lend` is `spaces.GPU`. Thread-safe. Make it before the page serves: Spaces look then for
    what needs a GPU. A race that waits for one hears of Stop with its first event.
    """

    def __init__(
        self,
        lend: Callable[..., Any],
        limits: Limits = PRIVATE,
        titles: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._forked = InlineHost(limits, titles)  # used in forks alone
        self._call = lend(duration=SECONDS)(self._in_fork)
        self._lock = threading.Lock()

    def stream(self, command: Command, stopped: Stopped) -> Iterator[Event]:
        if isinstance(command, ForgetVisitor):
            return  # what a fork keeps goes with it, and is not worth a GPU
        with one_at_a_time(self._lock, stopped) as acquired:
            yield from with_ends(command, self._events(command, stopped) if acquired else None)

    def _events(self, command: Command, stopped: Stopped) -> Generator[Event]:
        """Raises DerbyError if no GPU is lent, or it is taken away."""
        yield Preparing("Waiting for a GPU of ZeroGPU...")
        with TemporaryDirectory(prefix="decode-derby-") as folder:
            wanted = Path(folder) / "wanted"  # goes with the folder, too, if nobody listens
            wanted.touch()
            try:
                for value in self._call(command, str(wanted)):
                    if stopped():
                        wanted.unlink(missing_ok=True)
                    yield from_json(value)
            except Exception as error:
                # An error of Spaces is gradio's, with the sentence in `message`.
                sentence = str(getattr(error, "message", "")) or explain(error)
                raise DerbyError(f"ZeroGPU lends no GPU: {sentence}") from error

    def _in_fork(self, command: Command, wanted: str) -> Iterator[dict[str, Any]]:
        for event in self._forked.stream(command, lambda: not Path(wanted).exists()):
            yield to_json(event)

    def close(self) -> None: ...
