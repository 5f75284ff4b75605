"""Whose a request is: sessions of one cookie are told to be of one browser, and no others are."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from backend.errors import DerbyError
from backend.web.browsers import browser_of
from backend.web.quota import Quota
from page.identity import session_of

COOKIES = st.integers(0, 2**32).map("{:043d}".format)
NO_COOKIE = st.sampled_from(["", "ours it is not"])
SESSIONS = st.text(min_size=1, max_size=64)


def require_second(first: str, second: str) -> None:
    """Raises DerbyError if a race of `first` is one too many for `second`."""
    quota = Quota(1)
    quota.count(first, 0)
    quota.require(second, 1)


@given(COOKIES, SESSIONS, SESSIONS)
def test_sessions_of_one_cookie_share_the_quota(cookie: str, one: str, other: str) -> None:
    """The quota was kept by the session alone: whoever reloaded the page began with a fresh one."""
    visitors = session_of(cookie, one), session_of(cookie, other)
    assert (visitors[0] == visitors[1]) == (one == other)
    with pytest.raises(DerbyError, match="1 are allowed"):
        require_second(*visitors)


@given(COOKIES, COOKIES, SESSIONS, SESSIONS)
def test_two_cookies_do_not(cookie: str, another: str, one: str, other: str) -> None:
    assume(cookie != another)
    require_second(session_of(cookie, one), session_of(another, other))


@given(NO_COOKIE, COOKIES, SESSIONS, SESSIONS)
def test_sessions_without_a_cookie_share_it_with_nobody(
    none: str, cookie: str, one: str, other: str
) -> None:
    bare = session_of(none, one)
    require_second(bare, session_of(cookie, other))
    require_second(session_of(cookie, other), bare)
    if one != other:
        require_second(bare, session_of(none, other))


@given(COOKIES | NO_COOKIE, SESSIONS)
def test_the_name_holds_128_bits_that_the_browser_does_not_tell(cookie: str, named: str) -> None:
    visitor = session_of(cookie, named)
    assert len(visitor.removeprefix(browser_of(visitor) + ".")) * 4 >= 128
