"""The addresses of this machine that a server may listen at, and the names by which it can be
reached.
"""

import errno
import re
import socket

from backend.errors import DerbyError, check_range

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([\w.-]+))(?::\d{1,5})?", re.ASCII)


def host_name(host: str) -> str:
    """The name in "name:port", in small letters; "" if that is not what it is."""
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).lower().removesuffix(".") if found else ""


def free_port(host: str, port: int) -> int:
    """Return `port` if a server may listen there at `host`; for 0, any free port. Raises DerbyError
    if it may not.
    """
    with bound(host, port) as probe:
        return probe.getsockname()[1]


def bound(host: str, port: int) -> socket.socket:
    """A socket that is bound there, and does not listen yet. Raises DerbyError as `free_port`."""
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
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind(address)
    except OSError as error:
        opened.close()
        raise DerbyError(_unbound(host, port, error)) from error
    return opened


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
            return f"{host} is not an address of this machine: give --host one, such as 127.0.0.1."
    return f"Port {port} at {host} cannot be used ({error.strerror}): choose another with --port."
