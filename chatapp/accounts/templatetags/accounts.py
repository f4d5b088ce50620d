"""What the account pages ask about this Octavo."""

from __future__ import annotations

import ipaddress
from typing import Any

from django import template

from chatapp.site import selectors

register = template.Library()


@register.simple_tag
def mail_is_set_up() -> bool:
    return selectors.mail_is_set_up()


@register.simple_tag(takes_context=True)
def host_can_have_passkeys(context: dict[str, Any]) -> bool:
    """Browsers bind passkeys to a name, over TLS; localhost is the one exception."""
    request = context["request"]
    host = request.get_host().rpartition(":")[0] or request.get_host()
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return bool(request.is_secure() or host == "localhost" or host.endswith(".localhost"))
    return False
