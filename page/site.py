"""Where the page may be reached: names of its server, and origins whose pages may send requests to
it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

from backend.errors import DerbyError
from backend.machine import LOOPBACK
from backend.web.address import host_name

#: Ports that an origin leaves out.
_OWN_PORTS = ("80", "443")

#: What a server is bound to that answers at every address of its machine.
EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104


@dataclass(slots=True)
class Site:
    """`names` are the host names by which visitors may reach the page, beside the loopback's.
    `places` are the names among them that a proxy serves, written as in an origin: with the port,
    unless it is the scheme's usual one.

    Somebody could make a name of theirs point here (DNS rebinding). Their page in a visitor's
    browser would then have the same origin as this page, but its requests would carry that name. IP
    addresses cannot be rebound, so with `addresses` any of them is accepted. `space`: a Space of
    the Hub, which is shown within the Hub's page.
    """

    names: set[str] = field(default_factory=set)
    addresses: bool = False
    space: bool = False
    places: set[str] = field(default_factory=set)

    def add(self, place: str) -> None:
        """Accept another name: one that a proxy serves, as NAME or NAME:PORT."""
        name = host_name(place) or place.lower()
        self.names.add(name)
        port = place.rpartition(":")[2] if ":" in place.removeprefix(name) else ""
        self.places.add(place.lower() if port not in ("", *_OWN_PORTS) else name)

    def serves(self, host: str) -> bool:
        """Whether a request's Host header names this page."""
        name = host_name(host)
        return bool(name) and (
            name in LOOPBACK
            or name in self.names
            or (self.space and name.endswith(".hf.space"))
            or (self.addresses and _is_address(name))
        )

    def secure(self, scheme: str, headers: Mapping[str, str]) -> bool:
        """Whether the page's reader has it by https, from a request for it."""
        forwarded = headers.get("x-forwarded-proto", "").startswith("https")
        return self.space or forwarded or scheme == "https"

    def trusts(self, origin: str, host: str) -> bool:
        """Whether a page of `origin` may send requests to `host`: this page itself, or a proxy of
        the operator's.
        """
        scheme, _, place = origin.partition("://")
        if scheme not in ("http", "https"):
            return False
        # Another port is another server, which may be anybody's.
        return place.lower() in (host.lower(), *self.places)


def proxies_of(texts: Iterable[str]) -> list[str]:
    """Networks of proxies, from addresses and networks. Raises DerbyError for any other text."""
    networks: list[str] = []
    for text in texts:
        try:
            networks.append(str(ip_network(text, strict=False)))
        except ValueError as error:
            raise DerbyError(
                f"{text!r:.60} is not a proxy's address: give --proxy an address such as 10.0.0.1, "
                "or a network such as 10.0.0.0/8."
            ) from error
    return networks


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def site_of(host: str, public_hosts: tuple[str, ...], space_host: str, *, space: bool) -> Site:
    """The site of a server bound to `host`; `public_hosts` are an operator's."""
    site = Site({host_name(host) or host.lower()} - EVERYWHERE, space=space)
    site.addresses = space or host.strip("[]") in EVERYWHERE
    for name in filter(None, (*public_hosts, space_host)):
        site.add(name)
    return site
