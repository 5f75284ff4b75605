"""The page's own JavaScript: modules of assets/ that import one another, served as files.

Their address holds a digest of all of them, so that a browser keeps them until they change.
"""

from hashlib import blake2b

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from page.components import ASSETS

_MODULES = {path.name: path.read_bytes() for path in sorted(ASSETS.glob("*.js"))}

#: What their addresses begin with.
PLACE = f"/derby/{blake2b(b''.join(_MODULES.values()), digest_size=8).hexdigest()}/"

_HEADERS = {"Cache-Control": "public, max-age=31536000, immutable"}


def starting(name: str) -> str:
    """The script of a component: its module's `start` is given what gradio gives to it."""
    return f"{_imported(name)}.then((it) => it.start({{ element, props, trigger, watch }}))"


def calling(name: str, function: str) -> str:
    """The script of an event: what this function of a module makes of its values."""
    return f"async (...values) => (await {_imported(name)}).{function}(...values)"


def _imported(name: str) -> str:
    assert name in _MODULES  # noqa: S101
    return f'import(new URL("{PLACE[1:]}{name}", document.baseURI))'


async def _module(request: Request) -> Response:
    code = _MODULES.get(request.path_params["name"])
    if code is None:
        return JSONResponse({"detail": "There is nothing at this address."}, 404)
    return Response(code, 200, _HEADERS, "text/javascript")


ROUTE = Route(PLACE + "{name}", _module)
