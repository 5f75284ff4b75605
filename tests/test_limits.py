"""Limits: what an operator may set, and what is refused."""

from dataclasses import fields
from pathlib import Path

import pytest

from backend.errors import DerbyError
from backend.limits import PRIVATE, PUBLIC, VARIABLE, Limits, limits_of


def test_a_public_page_allows_no_more_than_a_private_one():
    for limit in fields(Limits):
        assert getattr(PUBLIC, limit.name) <= getattr(PRIVATE, limit.name), limit.name


def test_options_win_over_the_environment_and_that_over_the_usual(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIABLE, "columns=3, tokens=50")
    found = limits_of(["tokens=60"], public=True)
    assert (found.columns, found.tokens, found.waiting) == (3, 60, PUBLIC.waiting)


@pytest.mark.parametrize(
    "text", ["columns", "colums=3", "columns=", "columns=-1", "columns=0", "tokens=1e3", "=3"]
)
def test_a_limit_that_is_none_is_refused_by_name_and_value(text: str):
    with pytest.raises(DerbyError, match=r"limit"):
        limits_of([text], public=False)


def test_a_number_of_a_million_digits_is_refused_unread():
    with pytest.raises(DerbyError, match="whole number"):
        PRIVATE.changed([f"columns={'9' * 1_000_000}"])


def test_the_operators_page_lists_every_limit_as_it_is():
    page = (Path(__file__).resolve().parent.parent / "docs" / "operating.md").read_text("utf-8")
    for limit in fields(Limits):
        own, public = (f"{getattr(limits, limit.name):,}" for limits in (PRIVATE, PUBLIC))
        line = f"| `{limit.name}` | {limit.metadata['help']} | {own} | {public} |"
        assert line in page.splitlines(), line
