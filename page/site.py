"""Where the page may be reached: names of its server, and origins that may ask for its races."""

import errno
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address

from backend.errors import DerbyError, check_range

#: Names by which only programs of this machine reach it.
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

#: What a server is bound to that answers at every address of its machine.
EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([\w.-]+))(?::\d{1,5})?", re.ASCII)


@dataclass(slots=True)
class Site:
    """`names` are hosts that visitors may write, beside the loopback's; one may be added later.

    Whoever lets a name of theirs point here (DNS rebinding) has a page in a visitor's browser that
    is of one origin with this one; its requests carry that name. An address cannot be rebound: with
    `addresses`, each is right. `space`: a Space of the Hub, which is shown within the Hub's page.
    """

    names: set[str] = field(default_factory=set)
    addresses: bool = False
    space: bool = False

    def serves(self, host: str) -> bool:
        """Whether a request's Host header is one of this page's."""
        name = host_name(host)
        return bool(name) and (
            name in LOOPBACK
            or name in self.names
            or (self.space and name.endswith(".hf.space"))
            or (self.addresses and _is_address(name))
        )

    def root(self, scheme: str, headers: Mapping[str, str]) -> str:
        """The page's address as its reader wrote it, by the headers of a request whose host is one
        of this page's.
        """
        secure = self.space or headers.get("x-forwarded-proto", "").startswith("https")
        return f"{'https' if secure else scheme}://{headers.get('host', '')}"

    def trusts(self, origin: str, host: str) -> bool:
        """Whether a page of `origin` may send requests to `host`: this page, or one that an
        operator's proxy serves by another name.
        """
        scheme, _, place = origin.partition("://")
        if scheme not in ("http", "https"):
            return False
        return place.lower() == host.lower() or host_name(place) in self.names


def host_name(host: str) -> str:
    """The name in "name:port", in small letters; "" if that is not what it is."""
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).lower().removesuffix(".") if found else ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def site_of(host: str, public_hosts: tuple[str, ...], space_host: str, *, space: bool) -> Site:
    """The site of a server bound to `host`; `public_hosts` are an operator's."""
    names = {host_name(name) or name.lower() for name in (host, *public_hosts, space_host) if name}
    return Site(names - EVERYWHERE, space or host.strip("[]") in EVERYWHERE, space)


def free_port(host: str, port: int) -> int:
    """`port` if this machine lets a server have it at `host`; of 0, any that is free.

    Raises DerbyError if it does not.
    """
    check_range("The port", port, 0, 65_535)
    name = host.strip("[]")
    try:
        found = socket.getaddrinfo(name or "?", port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise DerbyError(
            f"There is no host {host!r:.80}: give --host an address of this machine, such as "
            "127.0.0.1, or 0.0.0.0 for all of them."
        ) from error
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise DerbyError(_unbound(host, port, error)) from error
        return probe.getsockname()[1]


def _unbound(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"Port {port} at {host} is taken, maybe by this program: end that, or choose "
                "another with --port (0: any free one)."
            )
        case errno.EACCES | errno.EPERM:
            return f"Port {port} may not be used by this user: choose one from 1024 with --port."
        case errno.EADDRNOTAVAIL:
            return f"{host} is no address of this machine: give --host one, such as 127.0.0.1."
    return f"Port {port} at {host} cannot be used ({error.strerror}): choose another with --port."
