"""The page's own JavaScript, served as one script.

Its address contains a digest, so a browser keeps it until it changes.
"""

from hashlib import blake2b

from starlette.responses import Response
from starlette.routing import Route

from backend.web.assets import ASSETS, script_of

_NAMES = sorted(path.name for path in ASSETS.glob("*.js"))
_CODE = f"{script_of(*_NAMES)}export {{ modules }};\n".encode()

#: Where it is.
PLACE = f"/derby/{blake2b(_CODE, digest_size=8).hexdigest()}.js"

_HEADERS = {"Cache-Control": "public, max-age=31536000, immutable"}


def starting(name: str) -> str:
    """The script of a component: it calls the module's `start` with what gradio provides."""
    return _with(name, "start({ element, props, trigger, watch })")


def calling(name: str, function: str) -> str:
    """The script of an event: it returns what this function of a module makes of the event's
    values.
    """
    return f"(...values) => {_with(name, f'{function}(...values)')}"


def _with(name: str, call: str) -> str:
    assert name in _NAMES  # noqa: S101
    script = f'import(new URL("{PLACE[1:]}", document.baseURI))'
    return f'{script}.then(({{ modules }}) => modules["{name}"].{call})'


ROUTE = Route(PLACE, lambda _: Response(_CODE, 200, _HEADERS, "text/javascript"))
