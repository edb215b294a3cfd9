"""Addresses that people enter and Rondo then asks: no one may make it ask a host inside its own network.

A name is resolved when the connection is made and the very address that was checked is connected to, so a
name that resolves differently in between gains nothing. Redirects are never followed (httpx's default).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
from django.conf import settings

Resolve = Callable[[str, int], list[str]]
"""(host, port) to the addresses of the host. Raises `OSError` where there are none."""

_PORTS = {"http": 80, "https": 443}

# The special-purpose registries of IANA, with multicast; blocks inside a listed one are left out. Those that
# are reachable globally (AS112, AMT, anycast of PCP and TURN) are no hosts of anybody's either.
_SPECIAL_V4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24"),
            *("192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
            *("224.0.0.0/4", "240.0.0.0/4"),
        ),
    )
)
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_SPECIAL_V6 = tuple(
    map(
        ipaddress.IPv6Network,
        ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20"),
    )
)
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP = 0x00005EFE
"""The third 32 bits of an ISATAP address; with the bit for "universal" they are 0x02005efe."""


class AddressRefusedError(Exception):
    """An address that is not asked. The message says why and what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AddressPolicy:
    """Rule for addresses of one kind: those of the public internet, and what a setting lists."""

    setting: str
    """The setting that lists hosts inside private networks, alone or with a port."""
    what: str
    """Noun for the receiver at such an address, for error messages."""
    error: type[Exception] = AddressRefusedError
    allows_query: bool = False
    only_https: bool = False
    """True if hosts that are not listed are asked over TLS alone."""

    def check_url(self, url: str) -> None:
        """Refuse a URL that cannot be one of these; what its name resolves to is checked later.

        Raises `error`: another scheme than http and https, no host, a host that programs read differently,
        a name and password, a query where none belongs, or an address within private or link-local ranges
        that the setting does not list.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise self._no_address(url) from None
        if parts.scheme not in _PORTS or not parts.hostname or port == 0:
            raise self._no_address(url)
        self._require_one_meaning(url, parts.hostname)
        if parts.username is not None or parts.password is not None or parts.fragment:
            raise self.error("The address must hold neither name, password, query nor fragment.")
        if parts.query and not self.allows_query:
            raise self.error("The address must hold neither name, password, query nor fragment.")
        if self.is_listed(parts.hostname, port or _PORTS[parts.scheme]):
            return
        if self.only_https and parts.scheme != "https":
            raise self.error("The address must begin with https://, so that nobody reads along.")
        try:
            address = ipaddress.ip_address(parts.hostname)
        except ValueError:
            return
        if not is_public(str(address)):
            raise self._inside(parts.hostname)

    def _require_one_meaning(self, url: str, host: str) -> None:
        """Refuse a host that the client, the resolver and this check do not read as the same one."""
        last = host.rstrip(".").rpartition(".")[2]
        if last.isdecimal() or last.startswith("0x"):
            try:
                ipaddress.IPv4Address(host)
            except ValueError:
                # A resolver reads 0177.0.0.1, 127.1 and 2130706433 as 127.0.0.1; httpx reads other hosts.
                raise self.error(
                    f"{host!r} is no address that all programs read alike. Write four decimal numbers "
                    "without leading zeros, such as 127.0.0.1, or the name of the host."
                ) from None
        try:
            parsed_host = httpx.URL(url).host
        except (httpx.InvalidURL, UnicodeError):
            raise self._no_address(url) from None
        labels = host.removesuffix(".").split(".")
        if parsed_host != host or (":" not in host and any(not 0 < len(label) < 64 for label in labels)):
            raise self._no_address(url)

    def is_listed(self, host: str, port: int) -> bool:
        """Return True where an administrator lists the host, alone or with this port."""
        listed = {str(entry).strip().lower() for entry in getattr(settings, self.setting)}
        name = host.lower()
        bracketed = f"[{name}]" if ":" in name else name
        return not listed.isdisjoint({name, bracketed, f"{bracketed}:{port}"})

    def checked(self, request: httpx.Request, resolve: Resolve) -> list[str]:
        """The addresses of the request's host, none of which is inside unless the host is listed."""
        host = request.url.host
        port = request.url.port or _PORTS[request.url.scheme]
        try:
            addresses = resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise httpx.ConnectError(f"the name {host} is not known", request=request) from error
        if not self.is_listed(host, port) and not all(map(is_public, addresses)):
            raise self._inside(host)
        return addresses

    def _no_address(self, url: str) -> Exception:
        return self.error(f"{url!r} is no address of a {self.what}. Write http://host:port.")

    def _inside(self, host: str) -> Exception:
        return self.error(
            f"{host} is an address inside a private network, which Rondo does not ask. An administrator can "
            f"allow it: put {host} into {self.setting} and start Rondo again."
        )


def is_public(address: str) -> bool:
    """Return True for an IP address of the public internet.

    Of IPv6 only global unicast (2000::/3) is, less every special-purpose block. An address of IPv4 inside one
    of IPv6 must be public itself: mapped addresses, NAT64 (64:ff9b::/96), ISATAP.
    """
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv4Address):
        return _is_public_v4(ip)
    last_four_bytes = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    if ip in _MAPPED or ip in _NAT64:
        return _is_public_v4(last_four_bytes)
    if ip not in _GLOBAL_UNICAST or any(ip in block for block in _SPECIAL_V6):
        return False
    is_isatap = (int(ip) >> 32 & 0xFDFFFFFF) == _ISATAP
    return not is_isatap or _is_public_v4(last_four_bytes)


def _is_public_v4(ip: ipaddress.IPv4Address) -> bool:
    return not any(ip in block for block in _SPECIAL_V4)


def addresses_of(host: str, port: int) -> list[str]:
    """Return the addresses that a host's name resolves to now, in the order of the system."""
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


class GuardedTransport(httpx.BaseTransport):
    """Connects to hosts that a policy allows, and to no other."""

    def __init__(
        self,
        policy: AddressPolicy,
        *,
        inner: httpx.BaseTransport | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self._policy = policy
        self._inner = inner or httpx.HTTPTransport(trust_env=False)
        self._resolve = resolve or addresses_of

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request to the first checked address that takes the connection."""
        problem: httpx.ConnectError | None = None
        for address in self._policy.checked(request, self._resolve):
            try:
                return self._inner.handle_request(_pinned(request, address))
            except httpx.ConnectError as error:
                problem = error
        raise problem or _nowhere(request)

    def close(self) -> None:
        """Give the connections back."""
        self._inner.close()


class AsyncGuardedTransport(httpx.AsyncBaseTransport):
    """`GuardedTransport` for an event loop."""

    def __init__(
        self,
        policy: AddressPolicy,
        *,
        inner: httpx.AsyncBaseTransport | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self._policy = policy
        self._inner = inner or httpx.AsyncHTTPTransport(trust_env=False)
        self._resolve = resolve or addresses_of

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request to the first checked address that takes the connection."""
        problem: httpx.ConnectError | None = None
        for address in await asyncio.to_thread(self._policy.checked, request, self._resolve):
            try:
                return await self._inner.handle_async_request(_pinned(request, address))
            except httpx.ConnectError as error:
                problem = error
        raise problem or _nowhere(request)

    async def aclose(self) -> None:
        """Give the connections back."""
        await self._inner.aclose()


def _pinned(request: httpx.Request, address: str) -> httpx.Request:
    """The request to one address. The certificate is the name's, and the header `Host` was set from it."""
    return httpx.Request(
        request.method,
        request.url.copy_with(host=address.partition("%")[0]),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": request.url.host},
    )


def _nowhere(request: httpx.Request) -> httpx.ConnectError:
    return httpx.ConnectError(f"the name {request.url.host} has no address", request=request)
