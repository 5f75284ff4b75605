"""What the tests of serving share: a server at a port, and a client of it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
from hosting import PATIENCE

from backend.limits import PRIVATE, Limits
from backend.racing.hosts.process import ProcessHost
from backend.results.metrics import Score
from backend.serving.app import CompletionApi
from backend.serving.models import Offered
from backend.serving.server import server_of
from backend.types import ModelSpec, Request
from backend.web.address import bound
from backend.web.offer import offer_of

#: Where the fake models run; requests name one of them.
PLACE = ModelSpec("fake", "fake", "fp32", "CPU")


def fakes(limits: Limits = PRIVATE) -> Offered:
    """The fake models, the endless one among them."""
    return Offered(offer_of(["fake"], ["fake-endless"], replace(limits, hub_bytes=0)), PLACE)


@dataclass
class Site:
    """A running server, and a client of it."""

    server: CompletionApi
    races: ProcessHost
    client: httpx.Client

    def post(self, path: str, values: Any, **options: Any) -> httpx.Response:
        return self.client.post(f"/v1/{path}", json=values, **options)

    @property
    def length(self) -> int:
        """Requests that run or wait."""
        return self.server._queue._length


#: Runs a race of one column on a fake model: (model, column, request) to its score.
Raced = Callable[[str, str, Request], Score]


@contextmanager
def serving(races: ProcessHost, offered: Offered, key: str = "") -> Iterator[Site]:
    """A server at a free port, until left."""
    server = CompletionApi(races, offered, key)
    with bound("127.0.0.1", 0) as listening:
        listening.listen()
        running = server_of(server.app(), lambda: None)
        thread = threading.Thread(target=running.run, args=([listening],))
        thread.start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            with httpx.Client(base_url=address, timeout=PATIENCE) as client:
                yield Site(server, races, client)
        finally:
            running.should_exit = True
            thread.join(PATIENCE)
