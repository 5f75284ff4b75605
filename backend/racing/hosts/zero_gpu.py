"""Runs races on a ZeroGPU Space, which lends a GPU for one call of a decorated generator.

Spaces fork this process for the call and run the generator there; what goes in and out is pickled.
So a command goes in, events come out as JSON, and a file says that they are still wanted.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from backend.errors import DerbyError, explain
from backend.events import Event, Preparing, from_json, to_json
from backend.limits import PRIVATE, Limits
from backend.models.files import give_titles
from backend.racing.hosts.host import Emit, Host, InlineHost, Stopped
from backend.racing.models import LoadedModels
from backend.racing.race import Race

#: GPU seconds that a call declares: what Spaces suppose of a call that declares none.
SECONDS = 60


class ZeroGpuHost(Host):
    """`lend` is `spaces.GPU`. Make it before the page serves: Spaces look then for what needs a
    GPU. A race that waits for one hears of Stop with its first event.
    """

    def __init__(
        self,
        lend: Callable[..., Any],
        limits: Limits = PRIVATE,
        titles: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        give_titles(titles)
        self._forked = InlineHost(LoadedModels(limits=limits))  # used in forks alone
        self._call = lend(duration=SECONDS)(self._in_fork)

    def _run(self, race: Race, emit: Emit, stopped: Stopped) -> None:
        """Raises DerbyError if no GPU is lent, or it is taken away."""
        emit(Preparing("Waiting for a GPU of ZeroGPU..."))
        with TemporaryDirectory(prefix="decode-derby-") as folder:
            wanted = Path(folder) / "wanted"
            wanted.touch()
            try:
                for value in self._call(race, str(wanted)):
                    if stopped():
                        wanted.unlink(missing_ok=True)
                    emit(from_json(value))
            except Exception as error:
                # An error of Spaces is gradio's, with the sentence in `message`.
                sentence = str(getattr(error, "message", "")) or explain(error)
                raise DerbyError(f"ZeroGPU lends no GPU: {sentence}") from error

    def _in_fork(self, race: Race, wanted: str) -> Iterator[dict[str, Any]]:
        queue: SimpleQueue[Event | None] = SimpleQueue()

        def run() -> None:
            self._forked.run(race, queue.put, lambda: not Path(wanted).exists())
            queue.put(None)

        threading.Thread(target=run, name="race", daemon=True).start()
        yield from map(to_json, iter(queue.get, None))
