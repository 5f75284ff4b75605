"""A server elsewhere as a column.

An operator names servers in a TOML file, one table each:

    [vllm]
    url = "http://10.0.0.5:8000"
    model = "owner/name"          # left out: the first that it lists
    key_variable = "VLLM_KEY"     # of the environment; or key = "..."; left out: none
"""

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field

from backend.errors import DerbyError
from backend.libraries.library import Emit, Library, Serving, Settings
from backend.libraries.stream import (
    SILENCE,
    WrongRequestError,
    beginning,
    explained,
    openai_body,
    printable,
    stream_answer,
)
from backend.machine import LOOPBACK
from backend.types import Request, Sampling
from backend.untrusted import Untrusted, read_as

if TYPE_CHECKING:
    from httpx import Client

#: The environment's name of the operator's file.
VARIABLE = "DECODE_DERBY_SERVERS"

#: The setting that names no model: the first that the server lists.
ANY_MODEL = "first"

#: Seconds until a server must have taken a connection.
CONNECT = 5.0

#: An address: host, port, path; no user, query or fragment.
ADDRESS = re.compile(r"https?://([\w.-]+|\[[\da-fA-F:.]+\])(:\d{1,5})?(/[\w./~-]*)?", re.ASCII)


class Server(Untrusted):
    """A table of the file. `key` is never shown, logged or recorded."""

    model_config = ConfigDict(extra="forbid")
    url: str
    model: str = ""
    key: str = Field(default="", repr=False)
    key_variable: str = ""


def is_address(text: str) -> bool:
    """Tell whether this is an address, and not the name of an offered server."""
    return text.startswith(("http://", "https://"))


def named_servers() -> Mapping[str, Server]:
    """The servers of the operator's file, by name; none without one. Raises DerbyError for a file
    that says anything else.
    """
    path = os.environ.get(VARIABLE, "")
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8")) if path else {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DerbyError(
            f"The file of servers cannot be read ({type(error).__name__}): check that it is there "
            "and that it is TOML.",
            f"{path}: {error}",
        ) from error
    return read_as(dict[str, Server], tables, "The file of servers")


def server_at(text: str) -> Server:
    """The server of that name, or at that address, with its key and the address that paths such as
    /completions follow: with /v1, which may be left out, or another such as /v3. Raises DerbyError.
    """
    servers = {text: Server(url=text)} if is_address(text) else named_servers()
    if text not in servers:
        raise DerbyError(
            f"There is no server {text!r:.60}: choose from {', '.join(servers) or 'none'}, or "
            "write an address such as http://127.0.0.1:8080."
        )
    url, variable = servers[text].url.rstrip("/"), servers[text].key_variable
    if not ADDRESS.fullmatch(url):
        raise DerbyError(
            f"{url!r:.80} is not a server's address: write http:// or https://, a host and a port, "
            "without a user, query or fragment; keys belong into the file of servers."
        )
    key = os.environ.get(variable, "") if variable else servers[text].key
    if variable and not key:
        raise DerbyError(f"The environment has no {variable!r:.60}, the key of {text}: set it.")
    versioned = url if re.search(r"/v\d+\Z", url, re.ASCII) else f"{url}/v1"
    return servers[text].model_copy(update={"url": versioned, "key": key})


class ServerModel:
    """Whatever a server runs: nothing is loaded here."""

    spec, tokenizer, weight_bytes, max_context = None, None, 0, 0

    def warm_up(self) -> Iterator[None]:
        yield from ()

    def synchronize(self) -> None: ...

    def prepare(self, request: Request, settings: Settings) -> None: ...

    def stop(self) -> None: ...

    def answer(self, request: Request, settings: Settings, emit: Emit) -> None:
        """See LibraryModel. A server that does not know the fields beyond OpenAI's is asked once
        more without them, unless the request is another then.
        """
        from httpx import Client, Timeout

        server, name = server_at(settings["at"]), urlsplit(settings["at"]).netloc or settings["at"]
        keys = {"Authorization": f"Bearer {server.key}"} if server.key else {}
        client = Client(
            base_url=server.url,
            headers={"Accept-Encoding": "identity"} | keys,
            timeout=Timeout(SILENCE, connect=CONNECT),
            # A proxy of the environment is not on the way to this machine.
            trust_env=urlsplit(server.url).hostname not in LOOPBACK,
        )
        with explained(f"The server {name}", server.key), client:
            listed, round_trip = _first_model(client)
            chosen = "" if settings["model"] == ANY_MODEL else settings["model"]
            model = chosen or server.model or listed
            serving = Serving(f"{model or 'a model'} on {name}", "server", round_trip)
            path, body, further = openai_body(request, model)
            try:
                stream_answer(client, path, body | further, emit, serving)
            except WrongRequestError:
                drawn = request.sampling
                known = Sampling(drawn.temperature, top_p=drawn.top_p, seed=drawn.seed)
                if drawn != known or request.ignore_eos:
                    raise
                stream_answer(client, path, body, emit, serving)


def _first_model(client: "Client") -> tuple[str, float]:
    """The first model that the server lists, "" if it lists none; and the seconds of the quickest
    of three exchanges.
    """
    trips, body = [], b""
    for _ in range(3):
        began = perf_counter()
        with client.stream("GET", "models") as response:
            body = beginning(response, 1 << 20)
        trips.append(perf_counter() - began)
    try:
        name = json.loads(body)["data"][0]["id"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        name = ""  # not every server lists models
    return printable(str(name)), min(trips)


SERVER = Library("server", elsewhere=ServerModel())
