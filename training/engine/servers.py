"""Which server answers for a checkpoint: our own, or the one that its record names."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Self

from training.engine.addresses import GuardedTransport, check_url
from training.engine.client import ANSWER_SECONDS, Engine
from training.engine.dialect import OPENAI
from training.engine.errors import EngineError
from training.models import Checkpoint

KEY_NAME = re.compile(r"RONDO_SERVER_KEY_[A-Z0-9_]{1,80}")
"""Names that a variable with another server's key may have. Any other name would let whoever may write down
a server have it sent any secret of the environment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Upstream:
    """Another server that answers for a checkpoint."""

    url: str
    """Without `/v1`."""
    model: str
    """What that server calls the checkpoint."""
    key: str
    """Empty where it wants none. Never stored, logged or shown."""


def upstream_of(checkpoint: Checkpoint) -> Upstream | None:
    """The server that a checkpoint's record names; None where our own answers.

    Raises `EngineError` where the variable with its key is not set.
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
    """The key in an environment variable; "" where none is named.

    Raises `EngineError` where it is not set, or its name is not one for keys of servers.
    """
    if not variable:
        return ""
    if not KEY_NAME.fullmatch(variable):
        raise EngineError(
            f"{variable} is no variable for a server's key. Its name must begin with RONDO_SERVER_KEY_."
        )
    if not (key := os.environ.get(variable, "").strip()):
        raise EngineError(
            f"The variable {variable}, which holds the server's key, is not set. Set it for the web server "
            "and the workers, and start them again."
        )
    return key


def base_of(url: str) -> str:
    """A server's address without the `/v1` that OpenAI's own clients expect at its end."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def engine_for(checkpoint: Checkpoint, *, timeout: float = ANSWER_SECONDS) -> Engine:
    """A client of the server that answers for a checkpoint, which is asked for by its own name here.

    Close it after use. Raises `AddressError` or `EngineError` where its server cannot be asked.
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
    """Clients of all servers that a piece of work asks, each made once and all closed at its end."""

    def __init__(self, own: Engine | None = None) -> None:
        """own: the client of our own server; one that is given is not closed here."""
        self._own = own
        self._made: dict[int | None, Engine] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def of(self, checkpoint: Checkpoint) -> Engine:
        """The client of the server that answers for a checkpoint."""
        if not checkpoint.server_url and self._own is not None:
            return self._own
        key = checkpoint.pk if checkpoint.server_url else None
        if key not in self._made:
            self._made[key] = engine_for(checkpoint)
        return self._made[key]

    def close(self) -> None:
        """Give the connections back."""
        while self._made:
            self._made.popitem()[1].close()
