"""Whose a request is: all tabs of one cookie are one visitor, whom no key opens."""

from hypothesis import given
from hypothesis import strategies as st

from page.identity import key_of, session_of, visitor_by, visitor_of

COOKIES = st.integers(0, 2**32).map("{:043d}".format)
NO_COOKIE = st.sampled_from(["", "ours it is not"])
SESSIONS = st.text(min_size=1, max_size=64)


@given(COOKIES, COOKIES, SESSIONS, SESSIONS)
def test_a_cookie_is_a_visitor_and_a_session_has_the_cookie_it_was_opened_with(
    cookie: str, another: str, one: str, other: str
) -> None:
    """Limits were kept by the session alone: whoever loaded the page anew had them afresh."""
    sessions = session_of(cookie, one), session_of(cookie, other)
    assert (sessions[0] == sessions[1]) == (one == other)
    assert visitor_of(sessions[0]) == visitor_of(sessions[1]) == visitor_by(cookie, "")
    same = cookie == another
    assert (session_of(another, one) == sessions[0]) == same
    assert (visitor_of(session_of(another, one)) == visitor_of(sessions[0])) == same


@given(NO_COOKIE, COOKIES, SESSIONS, SESSIONS)
def test_without_a_cookie_each_session_is_a_visitor_with_a_key(
    none: str, cookie: str, one: str, other: str
) -> None:
    bare, owner = (visitor_of(session_of(given, one)) for given in (none, cookie))
    assert bare != owner
    assert (visitor_of(session_of(none, other)) == bare) == (one == other)
    assert visitor_by(none, key_of(bare)) == bare
    assert len(bare.removeprefix("bare-")) * 4 >= 128


@given(NO_COOKIE, COOKIES, SESSIONS, st.text())
def test_a_visitor_with_a_cookie_has_no_key(
    none: str, cookie: str, session: str, guess: str
) -> None:
    owner = visitor_of(session_of(cookie, session))
    assert key_of(owner) == ""
    assert visitor_by(none, owner) == visitor_by(none, guess) == ""
    assert visitor_by(cookie, guess) == owner
