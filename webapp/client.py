"""A client of Rondo's API. Needs httpx alone: the file can be copied into any program.

    from webapp.client import Rondo

    with Rondo("http://127.0.0.1:8000", token="rondo_…") as rondo:
        for judgment in rondo.pages("projects/tea/judgments/", round=1):
            print(judgment["verdict"], judgment["ranks"])

A list is read page by page as one goes through it. What fails on the way or comes too often is sent again,
with the same `Idempotency-Key`, so that nothing is done twice. What is refused raises `Problem`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx

_AGAIN = (429, 502, 503, 504)
_LONGEST_WAIT = 60.0


class Problem(Exception):  # noqa: N818 - the word of RFC 9457
    """What the server refused, as problem details tell it."""

    def __init__(self, status: int, detail: str, errors: list[dict[str, str]]) -> None:
        told = "; ".join(f"{error['field']}: {error['message']}" for error in errors)
        super().__init__(f"{status}: {detail}{f' ({told})' if told else ''}")
        self.status = status
        self.detail = detail
        self.errors = errors
        """The fields that are wrong, each with `field` and `message`."""


class Rondo:
    """A connection to one installation in the name of a token's owner.

    address: where Rondo is, such as `https://rondo.example.org`. attempts: how often a request is sent
    before its failure is told. sleep: how to wait between two, in seconds.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str,
        attempts: int = 5,
        timeout: float = 60.0,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._attempts = attempts
        self._sleep = sleep
        self._http = httpx.Client(
            base_url=f"{address.rstrip('/')}/api/v1/",
            headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
            timeout=timeout,
            transport=transport,
        )

    def __enter__(self) -> Rondo:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()

    def get(self, path: str, **filters: Any) -> Any:
        """Read what `path` holds, below /api/v1/."""
        return self._send("GET", path, filters=filters).json()

    def pages(self, path: str, **filters: Any) -> Iterator[dict[str, Any]]:
        """Every entry of a list, page by page."""
        page = self.get(path, **filters)
        while True:
            yield from page["results"]
            if not page["next"]:
                return
            page = self._send("GET", page["next"]).json()

    def post(self, path: str, body: Mapping[str, Any] | None = None, *, key: str | None = None) -> Any:
        """Do something once, however often it has to be sent; what it was answered, None for nothing.

        key: the `Idempotency-Key`, where a program wants to go on with it after it was stopped itself.
        """
        headers = {"Idempotency-Key": key or str(uuid.uuid4())}
        return _content(self._send("POST", path, body=body or {}, headers=headers))

    def change(self, path: str, change: Callable[[Any], Mapping[str, Any]], *, method: str = "PATCH") -> Any:
        """Read what `path` holds and send what `change` makes of it; when somebody else changed it in
        between, read and change it again."""
        for _attempt in range(self._attempts):
            read = self._send("GET", path)
            try:
                headers = {"If-Match": read.headers["ETag"]}
                return _content(self._send(method, path, body=change(read.json()), headers=headers))
            except Problem as problem:
                if problem.status != 412:
                    raise
        raise Problem(412, f"{path} was changed by somebody else {self._attempts} times.", [])

    def delete(self, path: str) -> None:
        """Delete what `path` holds."""
        self._send("DELETE", path)

    def next_assignment(self, project: str) -> dict[str, Any] | None:
        """The comparison to judge next; None when there is nothing left."""
        told: dict[str, dict[str, Any] | None] = self.post(f"projects/{project}/assignments/next/")
        return told["assignment"]

    def judge(
        self, project: str, assignment: Mapping[str, Any], judgment: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Submit a judgment of an assignment."""
        path = f"projects/{project}/assignments/{assignment['id']}/judgment/"
        told: dict[str, dict[str, Any]] = self.post(path, judgment)
        return told["judgment"]

    def _send(
        self,
        method: str,
        path: str,
        *,
        filters: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """The answer to a request, sent again while the server is busy or away."""
        for left in range(self._attempts - 1, -1, -1):
            try:
                answer = self._http.request(
                    method, path, params=filters or None, json=body, headers=dict(headers or {})
                )
            except httpx.TransportError:
                if not left:
                    raise
                self._sleep(_pause(self._attempts - left))
                continue
            if answer.status_code in _AGAIN and left:
                self._sleep(_told_pause(answer) or _pause(self._attempts - left))
                continue
            if answer.is_error:
                raise _problem(answer)
            return answer
        raise ValueError("A request is sent once at least: attempts has to be 1 or more.")


def _content(answer: httpx.Response) -> Any:
    return answer.json() if answer.content else None


def _pause(attempt: int) -> float:
    """Twice as long each time: 0.5, 1, 2, … seconds."""
    return float(min(0.5 * 2 ** (attempt - 1), _LONGEST_WAIT))


def _told_pause(answer: httpx.Response) -> float | None:
    """What the server asks one to wait, within reason."""
    told = answer.headers.get("Retry-After", "")
    return min(float(told), _LONGEST_WAIT) if told.isdecimal() else None


def _problem(answer: httpx.Response) -> Problem:
    try:
        told = answer.json()
        return Problem(answer.status_code, told["detail"], told.get("errors", []))
    except (ValueError, KeyError, TypeError):
        return Problem(answer.status_code, answer.reason_phrase, [])
