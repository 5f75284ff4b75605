"""What the files of this folder share: one app for all, a browser each, and visitors who leave."""

from collections.abc import Callable, Iterator

import pytest
from browser import Visitor, launched, serving
from playwright.sync_api import Browser

from backend.limits import DECLARED, PRIVATE

Enter = Callable[..., Visitor]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as running:
        yield running


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    options = ("--fake", "--model", "fake-priced", "--public-host", "derby.example", "--mcp")
    limits = [f"--limit={name}={getattr(PRIVATE, name)}" for name in DECLARED]  # as without a name
    with serving(*options, *limits, cache=tmp_path_factory.mktemp("cache")) as found:
        yield found


@pytest.fixture
def enter(browser: Browser, address: str) -> Iterator[Enter]:
    """Opens the page as one more visitor; all of them leave in the end."""
    inside: list[Visitor] = []

    def opened(theme: str = "light") -> Visitor:
        inside.append(Visitor(browser, address, theme))
        return inside[-1]

    yield opened
    for visitor in inside:
        visitor.close()


@pytest.fixture
def visitor(enter: Enter) -> Visitor:
    return enter()
