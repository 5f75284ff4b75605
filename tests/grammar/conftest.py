"""Sandboxes for the tests of what runs in one."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from backend.grammar.sandbox.parent import Sandbox


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """Shared by a file's tests."""
    with closing(Sandbox()) as made:
        yield made


@pytest.fixture
def fresh() -> Iterator[Sandbox]:
    """One test's own, whose child has not been started."""
    with closing(Sandbox()) as made:
        yield made
