"""Whose a request is: a cookie that the server made, and the session that the browser named.

The browser draws the session's name with `Math.random()` and sends it in addresses, which stand in
logs: whoever reads one could end its race and take its texts. So what gradio and the rest of the
program know as the session is a digest of both; with another cookie it is another session. In front
of it stands a digest of the cookie alone, by which sessions of one browser are told. Nothing is
kept. Where a browser takes no cookies, the session's name alone counts, for both.
"""

import re
import secrets
from hashlib import blake2b

from backend.web.browsers import visitor_named

COOKIE = "decode_derby_visitor"
_TOKEN = re.compile(r"[\w-]{43}", re.ASCII)


def new_cookie(*, framed: bool) -> str:
    """A Set-Cookie header for a browser that has none. `framed`: within another site's page."""
    scope = "SameSite=None; Secure; Partitioned" if framed else "SameSite=Lax"
    return f"{COOKIE}={secrets.token_urlsafe(32)}; Path=/; HttpOnly; {scope}"


def known_cookie(value: str) -> str:
    """The cookie if it looks like one of ours, else ""."""
    return value if _TOKEN.fullmatch(value) else ""


def session_of(cookie: str, named: str) -> str:
    """The session's name within the server, which begins with the browser's: 128 bits of each."""
    known = known_cookie(cookie)
    both = f"{known} {named}"
    return visitor_named(_digest(known or both), _digest(both))


def _digest(text: str) -> str:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
