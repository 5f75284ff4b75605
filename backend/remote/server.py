"""A server: where it listens, what it runs, and the key that it asks for.

An operator names servers in a TOML file, one table each:

    [vllm]
    url = "http://10.0.0.5:8000"
    model = "owner/name"          # left out: the first that it lists
    key_variable = "VLLM_KEY"     # of the environment; or key = "..."; left out: none
"""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from backend.errors import DerbyError

#: The environment's name of the operator's file.
VARIABLE = "DECODE_DERBY_SERVERS"

#: What stands in the file's tables.
_FIELDS = {"url", "model", "key", "key_variable"}
_VERSION = re.compile(r"/v\d+\Z", re.ASCII)
_NAME = re.compile(r"[A-Za-z][\w-]{0,39}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Server:
    """`name` is shown; `url` is the address that paths such as /completions follow. `model` "":
    the first that it lists. `key` is never shown, logged or recorded.
    """

    name: str
    url: str
    model: str = ""
    key: str = field(default="", repr=False)


def is_address(text: str) -> bool:
    """Tell whether this is an address, and not the name of an offered server."""
    return text.startswith(("http://", "https://"))


def server_at(text: str) -> Server:
    """The server of that name, or at that address. Raises DerbyError."""
    if is_address(text):
        url = _base(text)
        return Server(urlsplit(url).netloc, url)
    known = named_servers()
    if text not in known:
        offered = f"choose from {', '.join(known)}, or " if known else ""
        raise DerbyError(
            f"There is no server {text!r:.60}: {offered}write an address such as "
            "http://127.0.0.1:8080."
        )
    return known[text]


def named_servers() -> Mapping[str, Server]:
    """The servers of the operator's file, by name; none without one. Raises DerbyError."""
    path = os.environ.get(VARIABLE, "")
    return read_servers(Path(path)) if path else {}


def read_servers(path: Path) -> Mapping[str, Server]:
    """The servers that a file names. Raises DerbyError for a file that says anything else."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DerbyError(
            f"The file of servers cannot be read ({type(error).__name__}): check that it is there "
            "and that it is TOML.",
            f"{path}: {error}",
        ) from error
    return {name: _server(name, table) for name, table in tables.items()}


def _server(name: str, table: Any) -> Server:
    if not _NAME.fullmatch(name):
        raise DerbyError(
            f"A server is called {name!r:.60}: begin with a letter, and use letters, digits, - and "
            "_ alone, 40 at most."
        )
    sound = isinstance(table, dict) and "url" in table and table.keys() <= _FIELDS
    if not sound or not all(isinstance(value, str) for value in table.values()):
        raise DerbyError(
            f"The server {name} must have a url, and may have model, key or key_variable, each a "
            "text."
        )
    return Server(name, _base(table["url"]), table.get("model", ""), _key(name, table))


def _key(name: str, table: Mapping[str, str]) -> str:
    if "key_variable" not in table:
        return table.get("key", "")
    key = os.environ.get(table["key_variable"], "")
    if not key:
        raise DerbyError(
            f"The server {name} takes its key from {table['key_variable']!r:.60} of the "
            "environment, which is not set: set it, or take key_variable out."
        )
    return key


def _base(url: str) -> str:
    """The address that paths follow: with /v1, which may be left out, or another such as /v3."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound, parts = False, urlsplit("")
    if not sound or parts.query or parts.fragment or "@" in parts.netloc or not url.isprintable():
        raise DerbyError(
            f"{url!r:.80} is not a server's address: write http:// or https://, a host and a port, "
            "without a user, query or fragment; keys belong into the file of servers."
        )
    base = url.rstrip("/")
    return base if _VERSION.search(base) else f"{base}/v1"
