"""What a visitor's next race begins with, once the worker that ran the last one is dead."""

import os
import signal
from collections.abc import Iterator

import pytest
from hosting import never, no_hanging, until
from races import FAKE, board_after

from backend.kvcache.sources import Scope, Visitor
from backend.racing.commands import ForgetVisitor
from backend.racing.hosts.process import ProcessHost
from backend.racing.race import Race
from backend.results.metrics import Score
from backend.strategies.column import parse_column
from backend.types import Request

COLUMNS = (parse_column("kv:cache=session"),)
ANN, BOB = Visitor("ann"), Visitor("bob")


@pytest.fixture
def host() -> Iterator[ProcessHost]:
    with no_hanging():
        made = ProcessHost()
        yield made
        made.close()


def raced(host: ProcessHost, scope: Scope, prompt: str = "Tell me of the sea") -> Score:
    request = Request(prompt, max_new_tokens=20)
    race = Race(request, COLUMNS, FAKE, scope=scope)
    board = board_after(COLUMNS, host.stream(race, never))
    assert board.scores[0].state == "done", board.scores[0].message
    return board.scores[0]


def kill(host: ProcessHost) -> None:
    before = host.pid
    os.kill(before, signal.SIGKILL)
    until(lambda: host.pid not in (0, before))


def test_a_killed_worker_takes_nobody_s_prefixes_with_it(host: ProcessHost) -> None:
    """Every visitor's next race computed its prompt anew because of one visitor's crash."""
    first = raced(host, ANN)
    assert first.reused == 0
    kill(host)
    again = raced(host, ANN)
    assert again.reused >= 20
    assert again.tokens == first.tokens
    assert raced(host, BOB).reused == 0, "what is Ann's is not Bob's"
    kill(host)
    list(host.stream(ForgetVisitor("ann"), never))
    assert raced(host, ANN).reused == 0
    assert raced(host, BOB).reused >= 20


def test_a_host_that_is_closed_leaves_no_prefix_behind() -> None:
    with no_hanging():
        host = ProcessHost()
        raced(host, ANN)
        path = host._prefixes.path
        assert path is not None
        assert len(list(path.iterdir())) == 1
        host.close()
        assert not path.exists()
