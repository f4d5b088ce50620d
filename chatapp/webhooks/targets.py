"""Which addresses a webhook may have: public ones over TLS, and no way into the network that we run in.

Two checks. A URL is looked at when somebody sets it, for mistakes that people can mend. What counts is the second: at
every attempt the name is resolved, every address it has must be public, and the connection goes to one of the very
addresses that were looked at (chatapp.webhooks.posting), so a name that changes in between leads nowhere else.

OCTAVO_WEBHOOK_ALLOW names networks that are the operator's own and meant to be reached; OCTAVO_WEBHOOK_PLAIN allows
http://, for development.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from urllib.parse import urlsplit, urlunsplit

from django.conf import settings
from django.utils.translation import gettext as _

from chatapp.errors import BadInput
from chatapp.webhooks.models import LONGEST_URL

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

PORTS = {"https": 443, "http": 80}
FIRST_FREE_PORT = 1024
# What a name cannot end in on the public network (RFC 6761, 6762, 7686, 8375, and what networks use by custom).
OWN_NAMES = ("localhost", "local", "internal", "intranet", "lan", "home.arpa", "onion", "test", "invalid", "example")

# Beyond what `is_global` knows: addresses that carry another address, and remains of former designs.
REFUSED: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "192.88.99.0/24",  # relays of 6to4
        "240.0.0.0/4",
        "64:ff9b::/96",  # NAT64: the last four bytes are an IPv4 address
        "64:ff9b:1::/48",  # NAT64 within a network
        "2002::/16",  # 6to4: bytes 3 to 6 are an IPv4 address
        "2001::/23",  # Teredo among others
        "::/96",  # IPv4-compatible
        "::ffff:0:0/96",  # IPv4-mapped, should one come so far
        "::ffff:0:0:0/96",  # IPv4-translated
        "fec0::/10",  # site-local
        "5f00::/16",  # segment routing
    )
)
# All public unicast of IPv6 is in it.
PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")


class Forbidden(Exception):
    """No webhook may go there; the text says why."""


class Unresolved(Exception):
    """The name has no address at the moment."""


def checked(text: str, *, param: str = "url") -> str:
    """The URL in the form that is kept. Raises BadInput."""

    def wrong(message: str) -> BadInput:
        return BadInput(message, param=param)

    text = text.strip()
    if not text:
        raise wrong(_("Write the address that is to be told, such as https://hooks.example.com/octavo."))
    if len(text) > LONGEST_URL:
        raise wrong(
            _("The address has %(n)s characters; %(most)s are the most.") % {"n": len(text), "most": LONGEST_URL}
        )
    if any(c.isspace() or not c.isprintable() for c in text) or "\\" in text:
        raise wrong(_("The address has a blank or a character in it that no address has."))
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise wrong(_("This is no address. Write one such as https://hooks.example.com/octavo.")) from None
    schemes = ("https", "http") if settings.OCTAVO_WEBHOOK_PLAIN else ("https",)
    if parts.scheme not in schemes or not host:
        raise wrong(_("Write an address that begins with https://, such as https://hooks.example.com/octavo."))
    if "@" in parts.netloc:
        raise wrong(_("Leave name and password out of the address; receivers know us by the signature."))
    if parts.fragment:
        raise wrong(_("Leave out what stands behind the #; no server gets to see it."))
    if port is not None and port != PORTS[parts.scheme] and port < FIRST_FREE_PORT:
        usual = PORTS[parts.scheme]
        raise wrong(
            _("Use port %(usual)s or one from %(first)s on; %(port)s belongs to another kind of service.")
            % {"usual": usual, "first": FIRST_FREE_PORT, "port": port}
        )
    host = _host(host, wrong)
    shown = f"[{host}]" if ":" in host else host
    netloc = shown if port in (None, PORTS[parts.scheme]) else f"{shown}:{port}"
    try:
        (parts.path + parts.query).encode("ascii")
    except UnicodeEncodeError:
        raise wrong(_("Write letters beyond ASCII in path and query with percent signs (%C3%A9).")) from None
    return urlunsplit((parts.scheme, netloc, parts.path or "/", parts.query, ""))


def _host(host: str, wrong: Callable[[str], BadInput]) -> str:
    if "%" in host:
        raise wrong(_("An address with a zone (%) belongs to a local network."))
    try:
        address: Address | None = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if address is not None:
        reason = refusal(address)
        if reason:
            raise wrong(
                _("%(host)s is %(reason)s; a webhook goes to public addresses only.") % {"host": host, "reason": reason}
            )
        return str(address)
    try:
        name = host.encode("idna").decode().lower().rstrip(".")
    except UnicodeError:
        raise wrong(_("The name in this address is none.")) from None
    if _is_number(name):
        raise wrong(_("Write an IP address in its usual form, with four numbers from 0 to 255."))
    own = "." not in name or any(name == end or name.endswith(f".{end}") for end in OWN_NAMES)
    if own and not settings.OCTAVO_WEBHOOK_ALLOW:
        raise wrong(
            _("%(name)s is a name of a local network; a webhook goes to public addresses only.") % {"name": name}
        )
    if not name or len(name) > 253 or not all(_is_label(label) for label in name.split(".")):
        raise wrong(_("The name in this address is none."))
    return name


def _is_label(label: str) -> bool:
    return 0 < len(label) < 64 and all(c.isalnum() or c in "-_" for c in label) and not label.startswith("-")


def _is_number(name: str) -> bool:
    """2130706433, 0x7f.1, 0177.0.0.1: what resolvers take for an IPv4 address."""
    try:
        socket.inet_aton(name)
    except OSError:
        return False
    return True


def refusal(address: Address) -> str:
    """What kind of address it is that no webhook may go to; empty for one that is fine."""
    inner = getattr(address, "ipv4_mapped", None) or address
    if any(inner in network for network in allowed_networks() if network.version == inner.version):
        return ""
    if getattr(inner, "scope_id", None):
        return _("an address of a local network")
    if inner.is_loopback:
        return _("an address of this machine")
    if inner.is_multicast:
        return _("an address of many")
    if inner.is_unspecified:
        return _("no address of a machine")
    if not inner.is_global or any(inner in network for network in REFUSED if network.version == inner.version):
        return _("an address of a local network")
    if inner.version == 6 and inner not in PUBLIC_V6:
        return _("no public address")
    return ""


def allowed_networks() -> list[Network]:
    """Those of OCTAVO_WEBHOOK_ALLOW."""
    return [ipaddress.ip_network(text, strict=False) for text in settings.OCTAVO_WEBHOOK_ALLOW]


def addresses_of(host: str, port: int) -> list[Address]:
    """Where to connect to, in the resolver's order. Raises Forbidden if any of them is none that may be, Unresolved."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError):
        raise Unresolved(f"There is no address for {host}.") from None
    addresses: dict[Address, None] = {}
    for family, _type, _protocol, _name, where in found:
        if family in (socket.AF_INET, socket.AF_INET6):
            addresses[ipaddress.ip_address(where[0])] = None
    for address in addresses:
        reason = refusal(address)
        if reason:
            raise Forbidden(
                _("%(host)s leads to %(reason)s; a webhook goes to public addresses only.")
                % {"host": host, "reason": reason}
            )
    if not addresses:
        raise Unresolved(f"There is no address for {host}.")
    return list(addresses)
