"""Passes requests on to model servers as they are, so that a client that goes away frees the server at once.

A thread that waits in a read cannot be woken; a task of an event loop can be cancelled, which closes the
connection. So one thread per process runs a loop that holds all connections, and the threads of the web
server read from queues and look now and then whether their client is still there.
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

from training.engine.addresses import AddressError, AsyncGuardedTransport
from training.engine.errors import EngineError, EngineUnavailableError

LOOK_SECONDS = 0.5
"""How often one looks whether the client is still there while the server says nothing."""


class ClientGoneError(Exception):
    """The client closed its connection: nobody waits for the answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """How a server's answer begins."""

    status: int
    headers: Mapping[str, str]


_Event = Head | bytes | EngineError | None
"""The beginning, then pieces of the body, then None; an error ends it at any time."""


class Exchange:
    """One request that was passed on. Read `head`, then iterate over it; close it in any case."""

    def __init__(self, is_gone: Callable[[], bool]) -> None:
        self._is_gone = is_gone
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._task: Future[None] | None = None

    def head(self) -> Head:
        """How the answer begins. Raises `EngineError`, or `ClientGoneError` when nobody waits any more."""
        event = self._next()
        if not isinstance(event, Head):
            raise EngineUnavailableError("The model server gave no answer.")
        return event

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """The next piece of the body as it comes. Raises as `head` does."""
        event = self._next()
        if isinstance(event, bytes):
            return event
        raise StopIteration

    def close(self) -> None:
        """Call the request off if it still goes on: its connection is closed."""
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
        """Pass a JSON body on. seconds: for the whole answer. guarded: look at the host's addresses first."""
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
        put(EngineUnavailableError(f"The answer took longer than {seconds:g} seconds.", status=504))
    except httpx.HTTPError:
        put(EngineUnavailableError("The model server does not answer; it may be starting.", status=503))
    except AddressError as error:
        put(error)


@cache
def relay() -> Relay:
    """The relay of this process, begun when it is first asked for: a loop does not survive a fork."""
    return Relay()
