"""Limits: what an operator may set, and what is refused."""

from dataclasses import fields
from pathlib import Path

import pytest

from backend.limits import DECLARED, PRIVATE, PUBLIC, VARIABLE, Limits, limits_of


def test_a_public_page_allows_no_more_than_a_private_one() -> None:
    for limit in fields(Limits):
        assert getattr(PUBLIC, limit.name) <= getattr(PRIVATE, limit.name), limit.name


def test_options_win_over_the_environment_and_that_over_the_usual(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "columns=3, tokens=50")
    found = limits_of(["tokens=60"], public=True)
    assert (found.columns, found.tokens, found.waiting) == (3, 60, PUBLIC.waiting)


def test_the_operators_page_lists_every_limit_as_it_is() -> None:
    page = (Path(__file__).resolve().parent.parent / "docs" / "operating.md").read_text("utf-8")
    for limit in fields(Limits):
        own, public = (f"{getattr(limits, limit.name):,}" for limits in (PRIVATE, PUBLIC))
        about = DECLARED[limit.name].description
        line = f"| `{limit.name}` | {about} | {own} | {public} |"
        assert line in page.splitlines(), line
