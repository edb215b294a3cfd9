"""Model servers: which one serves a checkpoint, and the addresses that may be asked."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Self

import httpx
from django.utils.translation import gettext as _

from annotation.services import addresses
from annotation.services.addresses import Policy, Resolve, is_public
from training.engine.client import ANSWER_SECONDS, OPENAI, Engine, EngineError
from training.models import Checkpoint

# ── Addresses ──


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


# ── Servers ──


KEY_NAME = re.compile(r"RONDO_SERVER_KEY_[A-Z0-9_]{1,80}")
"""Allowed names of a variable with another server's key. Any other name would let a user who may add a server
send it any secret of the environment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Upstream:
    """Another server that answers for a checkpoint."""

    url: str
    """Without `/v1`."""
    model: str
    """The server's name for the checkpoint."""
    key: str
    """Empty if none is needed. Never stored, logged or shown."""


def upstream_of(checkpoint: Checkpoint) -> Upstream | None:
    """Return the server in a checkpoint's record; None for Rondo's.

    Raises `EngineError` if the variable with its key is not set.
    """
    if not checkpoint.server_url:
        return None
    check_url(checkpoint.server_url)
    return Upstream(
        url=base_of(checkpoint.server_url),
        model=checkpoint.server_model or checkpoint.name,
        key=key_of(checkpoint.server_key),
    )


def key_of(variable: str) -> str:
    """Return the key in an environment variable; "" for an empty name.

    Raises `EngineError` if it is not set, or its name is not allowed for server keys.
    """
    if not variable:
        return ""
    if not KEY_NAME.fullmatch(variable):
        raise EngineError(
            _("%(variable)s is no variable for a server's key. Its name must begin with RONDO_SERVER_KEY_.")
            % {"variable": variable}
        )
    if not (key := os.environ.get(variable, "").strip()):
        raise EngineError(
            _(
                "The variable %(variable)s, which holds the server's key, is not set. Set it for "
                "the web server and the workers, and start them again."
            )
            % {"variable": variable}
        )
    return key


def base_of(url: str) -> str:
    """Return a server's address without the `/v1` that OpenAI's clients expect at its end."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def engine_for(checkpoint: Checkpoint, *, timeout: float = ANSWER_SECONDS) -> Engine:
    """Return a client of a checkpoint's server, which knows the checkpoint by its name in Rondo.

    Close it after use. Raises `AddressError` or `EngineError` if its server cannot be used.
    """
    upstream = upstream_of(checkpoint)
    if upstream is None:
        return Engine(timeout=timeout)
    return Engine(
        url=upstream.url,
        key=upstream.key,
        timeout=timeout,
        transport=GuardedTransport(),
        names={checkpoint.name: upstream.model},
        dialect=OPENAI,
    )


class Engines:
    """Clients of all servers that a task uses, each created once and all closed at its end."""

    def __init__(self, rondo_engine: Engine | None = None) -> None:
        """rondo_engine: the client of Rondo's server; a supplied one is not closed here."""
        self._own = rondo_engine
        self._made: dict[int | None, Engine] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def of(self, checkpoint: Checkpoint) -> Engine:
        """Return the client of a checkpoint's server."""
        if not checkpoint.server_url and self._own is not None:
            return self._own
        key = checkpoint.pk if checkpoint.server_url else None
        if key not in self._made:
            self._made[key] = engine_for(checkpoint)
        return self._made[key]

    def close(self) -> None:
        """Close the connections."""
        while self._made:
            self._made.popitem()[1].close()
