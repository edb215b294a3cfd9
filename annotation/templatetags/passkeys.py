"""Passkeys: WebAuthn needs a secure address that has a domain name."""

import ipaddress

from django import template
from django.http import HttpRequest

register = template.Library()


@register.simple_tag
def passkeys_work(request: HttpRequest) -> bool:
    """Return True where a browser offers passkeys at the address of this request."""
    host = request.get_host()
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    name = name.strip("[]").rstrip(".").lower()
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return request.is_secure() or name == "localhost" or name.endswith(".localhost")
    return False
