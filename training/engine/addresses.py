"""Address checks of other model servers: no user may make Rondo call a host inside its network."""

from __future__ import annotations

import httpx

from annotation.services import addresses
from annotation.services.addresses import Policy, Resolve, is_public
from training.engine.errors import EngineError

__all__ = ["AddressError", "AsyncGuardedTransport", "GuardedTransport", "check_url", "is_public"]


class AddressError(EngineError):
    """An address that is refused. The message says why and what to do."""


_MODEL_SERVERS = Policy(setting="RONDO_MODEL_SERVER_HOSTS", what="server", error=AddressError)


def check_url(url: str) -> None:
    """Raise `AddressError` for a URL that cannot be another model server's (`Policy.check_url`)."""
    _MODEL_SERVERS.check_url(url)


class GuardedTransport(addresses.GuardedTransport):
    """Transport that connects only to public internet hosts and those of RONDO_MODEL_SERVER_HOSTS."""

    def __init__(self, *, inner: httpx.BaseTransport | None = None, resolve: Resolve | None = None) -> None:
        super().__init__(_MODEL_SERVERS, inner=inner, resolve=resolve)


class AsyncGuardedTransport(addresses.AsyncGuardedTransport):
    """`GuardedTransport` for an event loop."""

    def __init__(
        self, *, inner: httpx.AsyncBaseTransport | None = None, resolve: Resolve | None = None
    ) -> None:
        super().__init__(_MODEL_SERVERS, inner=inner, resolve=resolve)
