"""Where a key may be used from: web origins and networks, as they are written, kept and compared.

An empty list admits everything. Knows no database.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from django.utils.translation import gettext as _

from chatapp.errors import BadInput

MOST = 50
DEFAULT_PORTS = {"http": 80, "https": 443}


def parse_origins(texts: Iterable[str], *, param: str = "allowed_origins") -> list[str]:
    """As browsers send them: https://app.example.com, a port where it is not the scheme's own. Raises BadInput."""
    return _each(texts, _origin, param)


def parse_networks(texts: Iterable[str], *, param: str = "allowed_networks") -> list[str]:
    """CIDR, IPv4 or IPv6; a single address is a network of one. Raises BadInput."""
    return _each(texts, _network, param)


def _each(texts: Iterable[str], parse: object, param: str) -> list[str]:
    assert callable(parse)
    found: dict[str, None] = {}
    for text in texts:
        if text.strip():
            found[parse(text.strip(), param)] = None
    if len(found) > MOST:
        raise BadInput(
            _("These are %(n)s; %(most)s at most can be listed.") % {"n": len(found), "most": MOST}, param=param
        )
    return list(found)


def _origin(text: str, param: str) -> str:
    wrong = BadInput(
        _("%(text)s is no origin. Write scheme and host as in https://app.example.com, without a path.")
        % {"text": f"{text[:100]!r}"},
        param=param,
    )
    try:
        parts = urlsplit(text)
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode() if ":" not in (parts.hostname or "") else parts.hostname
    except (ValueError, UnicodeError):
        raise wrong from None
    rest = parts.path.rstrip("/") or parts.query or parts.fragment or "@" in parts.netloc
    if parts.scheme not in DEFAULT_PORTS or not host or rest or not _is_host(host):
        raise wrong
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + (f":{port}" if port not in (None, DEFAULT_PORTS[parts.scheme]) else "")


def _is_host(host: str) -> bool:
    if ":" in host:
        try:
            return bool(ipaddress.IPv6Address(host))
        except ValueError:
            return False
    return all(label.replace("-", "").replace("_", "").isalnum() for label in host.split("."))


def _network(text: str, param: str) -> str:
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise BadInput(
            _("%(text)s is no network. Write an address or CIDR as in 203.0.113.7, 10.0.0.0/8 or 2001:db8::/32.")
            % {"text": f"{text[:100]!r}"},
            param=param,
        ) from None


def origin_admitted(allowed: Sequence[str], origin: str | None) -> bool:
    """`origin`: the request's Origin header. Lists admit what they name; who sends none comes from no listed page."""
    return not allowed or (origin or "").lower() in allowed


def network_admitted(allowed: Sequence[str], address: str | None) -> bool:
    if not allowed:
        return True
    try:
        found: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    # A dual-stack socket tells an IPv4 client as ::ffff:203.0.113.7.
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return any(found in ipaddress.ip_network(network) for network in allowed)


def origins_within(inner: Sequence[str], outer: Sequence[str]) -> bool:
    """Whatever `inner` admits, `outer` admits."""
    return not outer or (bool(inner) and set(inner) <= set(outer))


def networks_within(inner: Sequence[str], outer: Sequence[str]) -> bool:
    if not outer:
        return True
    limits = [ipaddress.ip_network(network) for network in outer]

    def inside(text: str) -> bool:
        network = ipaddress.ip_network(text)
        return any(
            network.version == limit.version and network.subnet_of(limit)  # type: ignore[arg-type]
            for limit in limits
        )

    return bool(inner) and all(inside(network) for network in inner)
