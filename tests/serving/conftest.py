"""A server of the fake models for the files of this folder, and races to compare it with."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from asking import PLACE, Raced, Site, fakes, serving
from hosting import never

from backend.racing.hosts.inline import InlineHost
from backend.racing.hosts.process import ProcessHost
from backend.racing.race import Race
from backend.results.metrics import Score
from backend.strategies.column import parse_column
from backend.types import Request


@pytest.fixture(scope="module")
def races() -> Iterator[ProcessHost]:
    with closing(ProcessHost()) as host:
        yield host


@pytest.fixture(scope="module")
def site(races: ProcessHost) -> Iterator[Site]:
    with serving(races, fakes()) as found:
        yield found


@pytest.fixture(scope="module")
def raced() -> Raced:
    """What the same race on the command line writes."""
    host = InlineHost()

    def race(model: str, column: str, request: Request) -> Score:
        score = Score()
        target = replace(PLACE, name=model)
        for event in host.stream(Race(request, (parse_column(column),), target), never):
            score.add(event)
        return score

    return race
