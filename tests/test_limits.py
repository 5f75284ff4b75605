"""Limits: what an operator may set, and what is refused."""

from pathlib import Path

import pytest

from backend.limits import PRIVATE, PUBLIC, VARIABLE, Limits, limits_of


def test_a_public_page_allows_no_more_than_a_private_one() -> None:
    for limit in Limits.model_fields:
        assert getattr(PUBLIC, limit) <= getattr(PRIVATE, limit), limit


def test_options_win_over_the_environment_and_that_over_the_usual(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "columns=3, tokens=50")
    found = limits_of(["tokens=60"], public=True)
    assert (found.columns, found.tokens, found.line) == (3, 60, PUBLIC.line)


def test_the_operators_page_lists_every_limit_as_it_is() -> None:
    page = (Path(__file__).resolve().parent.parent / "docs" / "operate.md").read_text("utf-8")
    for limit in Limits.model_fields:
        own, public = (f"{getattr(limits, limit):,}" for limits in (PRIVATE, PUBLIC))
        about = Limits.model_fields[limit].description
        line = f"| `{limit}` | {about} | {own} | {public} |"
        assert line in page.splitlines(), line
