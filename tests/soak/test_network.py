"""The network that the soak takes away: what passed through it ends with it."""

import contextlib
import socket
from collections.abc import Callable

import pytest
from soak.network import Proxy


def ended(side: socket.socket) -> bool:
    """Does nothing come from a connection any more?"""
    side.settimeout(10)
    with contextlib.suppress(ConnectionError):
        return side.recv(1) == b""
    return True


@pytest.mark.parametrize("away", [lambda _: None, Proxy.hold, Proxy.cut])
def test_a_proxy_that_closes_leaves_no_socket_open(away: Callable[[Proxy], None]) -> None:
    """Sockets it left to the garbage collector were errors of whichever test ran by then."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = Proxy(server.getsockname()[1])
        with socket.create_connection(("127.0.0.1", proxy.port)) as near:
            far, _ = server.accept()
            with far:
                near.sendall(b"a")
                assert far.recv(1) == b"a"
                away(proxy)
                with contextlib.suppress(ConnectionError):  # it may be cut by now
                    near.sendall(b"b")
                proxy.close()
                assert ended(near)
