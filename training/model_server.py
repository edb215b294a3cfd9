"""Client of a server with OpenAI's interface: requests, retries, streams and errors. No Django, no torch.

The web application phrases the errors for its pages (`training.engine`); the trainer takes them as they are.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Self, TypeVar

import httpx

RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504})
"""Statuses after which a request is sent again."""

Failure = Literal["refused", "silent", "timeout", "cut off", "too long", "not JSON", "unusable", "aborted"]
"""The server answered with an error; did not answer; not in time; broke off; took longer than allowed for a
stream; sent no JSON, or another thing than an answer; or the caller gave up."""

BROKE_OFF = "the server broke off in the middle of its answer"

_LOOK_SECONDS = 0.1
"""Between two looks at whether the caller is to stop."""

_Result = TypeVar("_Result")


class ServerError(Exception):
    """The server gave no answer. The message is for people."""

    def __init__(
        self,
        message: str,
        *,
        failure: Failure = "unusable",
        status: int | None = None,
        param: str | None = None,
        server_message: str = "",
        retry_after: float | None = None,
    ) -> None:
        """status: of the server's answer, where there was one. param: the field that it blames.

        server_message: the server's own explanation. retry_after: seconds until it accepts another request.
        """
        super().__init__(message)
        self.failure = failure
        self.status = status
        self.param = param
        self.server_message = server_message
        self.retry_after = retry_after


class Closing(ABC):
    """Something that a `with` block closes at its end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Give the connections back."""


class ModelServer(Closing):
    """A client of one server. Safe to use from several threads; close it after use."""

    def __init__(
        self,
        *,
        url: str,
        key: str,
        timeout: float,
        connect_timeout: float = 10.0,
        name: str = "the model server",
        attempts: int = 1,
        pause: float = 0.0,
        transport: httpx.BaseTransport | None = None,
        use_proxy: bool = True,
    ) -> None:
        """url: without `/v1`. timeout, connect_timeout: seconds. name: of the server, in messages.

        attempts: times a request is sent to a server that is busy or silent, after `pause` seconds, then
        twice that and so on. transport: guards addresses, or replaces the network. use_proxy: whether to use
        a proxy of the environment, which would bypass a guard.
        """
        self._name, self._attempts, self._pause = name, attempts, pause
        self._aborted = threading.Event()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._client = httpx.Client(
            base_url=url,
            headers=authorization(key),
            timeout=httpx.Timeout(timeout, connect=connect_timeout),
            transport=transport,
            trust_env=use_proxy,
        )

    @property
    def url(self) -> httpx.URL:
        """Return the server's address."""
        return self._client.base_url

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def abort(self) -> None:
        """End the requests of other threads at once; they and all later ones raise `ServerError`."""
        self._aborted.set()
        with self._lock:
            for connection in self._sockets:
                # To close it would leave who reads from it waiting.
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def each(
        self, tasks: Sequence[Callable[[], _Result]], *, at_once: int, cancelled: Callable[[], bool]
    ) -> list[_Result | None]:
        """Return the result of each task, some of which run at a time; None for those that were called off.

        tasks: each asks this server. cancelled: whether to call off the rest, and abort what is being asked.
        The threads are daemons: one that still waits for an answer ends with the process, not the process
        with it. Raises what the first task that fails raises.
        """
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[int, _Result | Exception]] = queue.SimpleQueue()
        for number in range(len(tasks)):
            waiting.put(number)

        def work() -> None:
            while not cancelled():
                try:
                    number = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    done.put((number, tasks[number]()))
                except Exception as error:
                    done.put((number, error))
                    return

        for _ in range(min(at_once, len(tasks))):
            threading.Thread(target=work, name=self._name, daemon=True).start()
        results: dict[int, _Result] = {}
        while len(results) < len(tasks):
            if cancelled():
                self.abort()
                break
            with suppress(queue.Empty):
                number, result = done.get(timeout=_LOOK_SECONDS)
                if isinstance(result, Exception):
                    raise result
                results[number] = result
        return [results.get(number) for number in range(len(tasks))]

    def post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """Return the server's answer, which is a success. Raises `ServerError`."""
        return self.send("POST", path, body)

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Return the decoded JSON of the server's answer. Raises `ServerError`."""
        response = self.send(method, path, body, timeout=timeout)
        try:
            return response.json()
        except ValueError:
            raise ServerError(
                f"the answer of {self._name} is not JSON",
                failure="not JSON",
                status=response.status_code,
            ) from None

    def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        stream: bool = False,
        any_status: bool = False,
    ) -> httpx.Response:
        """Return the server's answer, which is a success; with `stream` its body is not yet read.

        timeout: seconds, if not the usual. any_status: return an answer of any status. Raises `ServerError`.
        """
        error = ServerError(f"the request to {self._name} was broken off", failure="aborted")
        for attempt in range(self._attempts):
            if self._aborted.wait(self._pause * 2 ** (attempt - 1) if attempt else 0):
                break
            request = self._client.build_request(
                method,
                path,
                json=body,
                timeout=timeout or self._client.timeout,
                extensions={"trace": self._note_socket},
            )
            try:
                response = self._client.send(request, stream=stream)
                if stream and not response.is_success:
                    response.read()
            except httpx.HTTPError as cause:
                error = ServerError(
                    f"{self._name} at {self.url} does not answer ({type(cause).__name__})",
                    failure="timeout" if isinstance(cause, httpx.TimeoutException) else "silent",
                )
                continue
            if response.is_success or any_status:
                return response
            error = self._refusal(response)
            if response.status_code not in RETRIED:
                break
        raise error

    def events(self, response: httpx.Response, *, seconds: float | None = None) -> Iterator[dict[str, Any]]:
        """Yield the JSON objects of a streamed answer. Raises `ServerError`.

        seconds: limit for the whole stream.
        """
        return read_events(self._lines(response, seconds))

    def _lines(self, response: httpx.Response, seconds: float | None) -> Iterator[str]:
        until = None if seconds is None else time.monotonic() + seconds
        try:
            for line in response.iter_lines():
                if until is not None and time.monotonic() > until:
                    raise ServerError(
                        f"the answer of {self._name} took longer than {seconds:g} seconds", failure="too long"
                    )
                yield line
        except httpx.HTTPError:
            raise ServerError(BROKE_OFF, failure="cut off") from None

    def _refusal(self, response: httpx.Response) -> ServerError:
        message, param = _read_error(response)
        reason = f": {message}" if message else ""
        return ServerError(
            f"{self._name} answered with status {response.status_code}{reason}",
            failure="refused",
            status=response.status_code,
            param=param,
            server_message=message,
            retry_after=_seconds(response.headers.get("Retry-After")),
        )

    def _note_socket(self, event: str, info: Mapping[str, Any]) -> None:
        """Keep the socket of each connection, which httpx hands over when it is made (its `trace`)."""
        if event not in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            return
        connection = info["return_value"].get_extra_info("socket")
        with self._lock:
            self._sockets = {known for known in self._sockets if known.fileno() >= 0} | {connection}
        if self._aborted.is_set():
            self.abort()


def authorization(key: str) -> dict[str, str]:
    """Return the header with a key; none for an empty key."""
    return {"Authorization": f"Bearer {key}"} if key else {}


_END = "[DONE]"


def read_events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of server-sent events. Raises `ServerError` where they break off."""
    data: list[str] = []
    for line in lines:
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            text, data = "\n".join(data), []
            if text == _END:
                return
            yield _event(text)
    raise ServerError(BROKE_OFF, failure="cut off")


def _event(text: str) -> dict[str, Any]:
    try:
        event = json.loads(text)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise ServerError("the server streams something that is no answer")
    return event


def _read_error(response: httpx.Response) -> tuple[str, str | None]:
    """Return the server's message, from OpenAI's error object or a bare one, and the field that it blames."""
    if response.is_redirect:
        return "The model server answers with a redirect, which is not followed.", None
    message: Any = None
    param: Any = None
    with suppress(ValueError, AttributeError):
        result = response.json()
        message = error = result.get("error", result)
        if isinstance(error, Mapping):
            message, param = error.get("message"), error.get("param")
    return str(message or ""), str(param) if param else None


def _seconds(header: str | None) -> float | None:
    try:
        return max(0.0, float(header)) if header is not None else None
    except ValueError:
        return None
