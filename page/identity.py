"""Tells whose request it is, by a cookie of the server's and the session that gradio's page names.

All tabs of a browser are one visitor: a digest of the cookie. gradio's page draws the session's
name with `Math.random()` and sends it in addresses, which end up in logs. So gradio's session is
given another name here: the visitor, a dot, and a digest of cookie and name. With another cookie it
is another session. Nothing is stored. If a browser accepts no cookies, only the session's name
counts. Such a page is told its key, with which it opens its stream.
"""

import re
import secrets
from hashlib import blake2b

COOKIE = "decode_derby_visitor"
_TOKEN = re.compile(r"[\w-]{43}", re.ASCII)

#: What the names of visitors without a cookie begin with: these are keys.
_BARE = "bare-"
_KEY = re.compile(rf"{_BARE}[0-9a-f]{{32}}", re.ASCII)


def new_cookie(*, framed: bool, secure: bool) -> str:
    """A Set-Cookie header for a browser that has none. `framed`: within another site's page,
    `secure`: the page came by HTTPS, and by nothing else may the cookie go back.
    """
    scope = "SameSite=Lax; Secure" if secure else "SameSite=Lax"
    if framed:
        scope = "SameSite=None; Secure; Partitioned"
    return f"{COOKIE}={secrets.token_urlsafe(32)}; Path=/; HttpOnly; {scope}"


def known_cookie(value: str) -> str:
    """The cookie if it looks like one of ours, else ""."""
    return value if _TOKEN.fullmatch(value) else ""


def session_of(cookie: str, named: str) -> str:
    """The session's name within the server."""
    known = known_cookie(cookie)
    both = _digest(f"{known} {named}")
    return f"{_digest(known) if known else _BARE + both}.{both}"


def visitor_of(session: str) -> str:
    """The visitor who holds this session of the server's."""
    return session.partition(".")[0]


def visitor_by(cookie: str, key: str) -> str:
    """The visitor with this cookie; without a cookie, the visitor with this key, or ""."""
    if known := known_cookie(cookie):
        return _digest(known)
    return key if _KEY.fullmatch(key) else ""


def key_of(visitor: str) -> str:
    """What a visitor's page must know to open its stream; "" where it has a cookie."""
    return visitor if visitor.startswith(_BARE) else ""


def _digest(text: str) -> str:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
