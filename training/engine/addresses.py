"""Which addresses other model servers may have: no one may make Rondo ask a host inside its own network."""

from __future__ import annotations

import httpx

from annotation import addresses
from annotation.addresses import Policy, Resolve, is_public
from training.engine.errors import EngineError

__all__ = ["AddressError", "AsyncGuardedTransport", "GuardedTransport", "check_url", "is_public"]


class AddressError(EngineError):
    """An address that is not asked. The message says why and what to do."""


_MODEL_SERVERS = Policy(setting="RONDO_MODEL_SERVER_HOSTS", what="server", error=AddressError)


def check_url(url: str) -> None:
    """Refuse a URL that cannot be another model server's (`Policy.check_url`). Raises `AddressError`."""
    _MODEL_SERVERS.check_url(url)


class GuardedTransport(addresses.GuardedTransport):
    """Connects to hosts of the public internet and to those of RONDO_MODEL_SERVER_HOSTS, to no other."""

    def __init__(self, *, inner: httpx.BaseTransport | None = None, resolve: Resolve | None = None) -> None:
        super().__init__(_MODEL_SERVERS, inner=inner, resolve=resolve)


class AsyncGuardedTransport(addresses.AsyncGuardedTransport):
    """`GuardedTransport` for an event loop."""

    def __init__(
        self, *, inner: httpx.AsyncBaseTransport | None = None, resolve: Resolve | None = None
    ) -> None:
        super().__init__(_MODEL_SERVERS, inner=inner, resolve=resolve)
