"""Relay of requests to model servers; a client that disconnects frees the server at once.

A thread that waits in a read cannot be woken; a task of an event loop can be cancelled, which closes the
connection. So one thread per process runs a loop with all connections, and the web server's threads read from
queues and check regularly that their client is still connected.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache

import httpx
from django.utils.translation import gettext as _

from training.engine.client import EngineError, EngineUnavailableError
from training.engine.servers import AddressError, AsyncGuardedTransport

LOOK_SECONDS = 0.5
"""Interval between checks for the client while the server is silent."""


class ClientGoneError(Exception):
    """The client closed its connection, so the answer is not needed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """Status and headers of a server's answer."""

    status: int
    headers: Mapping[str, str]


_Event = Head | bytes | EngineError | None
"""The beginning, then pieces of the body, then None; an error ends it at any time."""


class Exchange:
    """A relayed request. Read `head`, then iterate over it; always close it."""

    def __init__(self, is_gone: Callable[[], bool]) -> None:
        self._is_gone = is_gone
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._task: Future[None] | None = None

    def head(self) -> Head:
        """Return the answer's head. Raises `EngineError`, or `ClientGoneError` if the client disconnected."""
        event = self._next()
        if not isinstance(event, Head):
            raise EngineUnavailableError(_("The model server gave no answer."))
        return event

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """Return the next piece of the body. Raises as `head` does."""
        event = self._next()
        if isinstance(event, bytes):
            return event
        raise StopIteration

    def close(self) -> None:
        """Cancel the request if it is still running, closing its connection."""
        if self._task is not None:
            self._task.cancel()

    def _next(self) -> _Event:
        while True:
            try:
                event = self._events.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if self._is_gone():
                    self.close()
                    raise ClientGoneError from None
                continue
            if isinstance(event, EngineError):
                raise event
            return event


class Relay:
    """The loop's thread and its clients. Safe to use from several threads."""

    def __init__(
        self,
        *,
        plain: httpx.AsyncBaseTransport | None = None,
        guarded: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._plain = httpx.AsyncClient(transport=plain, trust_env=False)
        self._guarded = httpx.AsyncClient(transport=guarded or AsyncGuardedTransport(), trust_env=False)
        threading.Thread(target=self._loop.run_forever, name="relay", daemon=True).start()

    def post(
        self,
        *,
        url: str,
        key: str,
        body: bytes,
        seconds: float,
        guarded: bool,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> Exchange:
        """Relay a JSON body. seconds: for the whole answer. guarded: check the host's addresses first."""
        exchange = Exchange(is_gone)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        client = self._guarded if guarded else self._plain
        request = client.build_request(
            "POST", url, content=body, headers=headers, timeout=httpx.Timeout(seconds, connect=10.0)
        )
        exchange._task = asyncio.run_coroutine_threadsafe(
            _pass_on(client, request, exchange._events.put, seconds), self._loop
        )
        return exchange


async def _pass_on(
    client: httpx.AsyncClient, request: httpx.Request, put: Callable[[_Event], None], seconds: float
) -> None:
    try:
        async with asyncio.timeout(seconds):
            response = await client.send(request, stream=True)
            try:
                put(Head(status=response.status_code, headers=dict(response.headers)))
                async for piece in response.aiter_bytes():
                    put(piece)
                put(None)
            finally:
                await response.aclose()
    except (TimeoutError, httpx.TimeoutException):
        put(
            EngineUnavailableError(
                _("The answer took longer than %(seconds)g seconds.") % {"seconds": seconds}, status=504
            )
        )
    except httpx.HTTPError:
        put(EngineUnavailableError(_("The model server does not answer; it may be starting."), status=503))
    except AddressError as error:
        put(error)


@cache
def relay() -> Relay:
    """Return the relay of this process, created on first use: a loop does not survive a fork."""
    return Relay()
