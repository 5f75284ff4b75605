"""What the files of this folder share: one app for all, a browser, and visitors who leave."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from browser import Visitor, launched, serving
from playwright.sync_api import Browser

Enter = Callable[..., Visitor]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as running:
        yield running


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("cache")) as place:
        yield place


@pytest.fixture
def enter(browser: Browser, address: str) -> Iterator[Enter]:
    """Opens the page with settings, as one more visitor; all of them leave in the end."""
    inside: list[Visitor] = []

    def opened(**settings: Any) -> Visitor:
        inside.append(Visitor(browser, address, **settings))
        return inside[-1]

    yield opened
    for visitor in inside:
        visitor.close()
