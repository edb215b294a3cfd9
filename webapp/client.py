"""A client of Rondo's API. Needs httpx alone: the file can be copied into any program.

    from webapp.client import Rondo

    with Rondo("http://127.0.0.1:8000", token="rondo_…") as rondo:
        for judgment in rondo.pages("projects/tea/judgments/", round=1):
            print(judgment["verdict"], judgment["ranks"])

Files come in and go out, and what a webhook tells is believed only with its signature:

        done = rondo.import_file("tea", "votes.csv", mapping={"prompt": "question"})
        account = rondo.export_file("tea", "trl-preference", "pairs.jsonl", rounds="1,2")
    event = verified(secret, request.headers, request.body)

A list is read page by page as one goes through it. What fails on the way or comes too often is sent again,
with the same `Idempotency-Key`, so that nothing is done twice. What is refused raises `Problem`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

_AGAIN = (429, 502, 503, 504)
_LONGEST_WAIT = 60.0
_LOOK_EVERY = 1.0
_GOES_ON = ("waiting", "running")
_TOLERANCE = 300


class Problem(Exception):  # noqa: N818 - the word of RFC 9457
    """What the server refused, as problem details tell it."""

    def __init__(self, status: int, detail: str, errors: list[dict[str, str]]) -> None:
        told = "; ".join(f"{error['field']}: {error['message']}" for error in errors)
        super().__init__(f"{status}: {detail}{f' ({told})' if told else ''}")
        self.status = status
        self.detail = detail
        self.errors = errors
        """The fields that are wrong, each with `field` and `message`."""


class SignatureError(Exception):
    """A message that was not signed with this secret, or long ago: it may be anybody's."""


def verified(
    secret: str, headers: Mapping[str, str], body: bytes, *, now: float | None = None
) -> dict[str, Any]:
    """What a webhook tells, once its signature holds. Raises `SignatureError`.

    secret: `whsec_…`, as it was told when the webhook was made or rotated. headers: of the request, in
    whatever case. body: the bytes as they came. A message of more than five minutes ago is refused, so that
    nobody sends it again; which ones came already is told by the header `webhook-id`.
    """
    told = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, sent = told["webhook-id"], told["webhook-timestamp"]
        age = abs((time.time() if now is None else now) - int(sent))
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        signatures = told["webhook-signature"].split(" ")
    except (KeyError, ValueError) as error:
        raise SignatureError("The message bears no signature, or the secret is none.") from error
    if age > _TOLERANCE:
        raise SignatureError("The message was signed too long ago.")
    signed = b".".join((message_id.encode(), sent.encode(), body))
    expected = b"v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256))
    if not any(hmac.compare_digest(expected, one.encode()) for one in signatures):
        raise SignatureError("The signature is not that of this secret.")
    event: dict[str, Any] = json.loads(body)
    return event


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

    def import_file(
        self,
        project: str,
        path: str | Path,
        *,
        format_name: str | None = None,
        mapping: Mapping[str, str] | None = None,
        skip_bad: bool = False,
        seconds: float = 3600.0,
    ) -> dict[str, Any]:
        """Bring a file in and wait until it is: how that ended, with `state`, `counts` and `errors`.

        mapping: column of the format → column of the file; guessed, like the format, where it is left out.
        The same file twice adds nothing. Raises `Problem` for one that is refused, `TimeoutError` for one
        that takes longer.
        """
        files = {"file": (Path(path).name, Path(path).read_bytes())}
        record = self._send("POST", f"projects/{project}/imports/", files=files).json()
        address = f"projects/{project}/imports/{record['id']}/"
        plan = {"format": format_name, "mapping": dict(mapping) if mapping is not None else None}
        if told := {name: value for name, value in plan.items() if value is not None}:
            self._send("PATCH", address, body=told)
        record = self.post(f"{address}start/", {"skip_bad": skip_bad})
        for _look in range(max(1, int(seconds / _LOOK_EVERY))):
            if record["state"] not in _GOES_ON:
                return dict(record)
            self._sleep(_LOOK_EVERY)
            record = self.get(address)
        raise TimeoutError(f"{Path(path).name} is still {record['state']} after {seconds:g} seconds.")

    def export_file(self, project: str, format_name: str, path: str | Path, **filters: Any) -> dict[str, Any]:
        """Write a project's judgments to a file; the account of what is in it and what was dropped.

        filters: `rounds` ("1,2"), `split`, `machines`. What was cut off on the way is not left behind.
        """
        address, target = f"projects/{project}/exports/{format_name}/", Path(path)
        part = target.with_name(f".{target.name}.part")
        try:
            with self._http.stream("GET", address, params=filters or None) as answer:
                if answer.is_error:
                    answer.read()
                    raise _problem(answer)
                with part.open("wb") as file:
                    for piece in answer.iter_bytes():
                        file.write(piece)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        account: dict[str, Any] = self.get(f"{address}manifest/", **filters)["manifest"]
        return account

    def add_webhook(
        self, project: str, url: str, events: Sequence[str], *, description: str = ""
    ) -> dict[str, Any]:
        """Have an address told of events. The answer's `secret` is told once: keep it for `verified`."""
        told = {"url": url, "events": list(events), "description": description}
        made: dict[str, Any] = self.post(f"projects/{project}/webhooks/", told)
        return made

    def deliveries(self, project: str, **filters: Any) -> Iterator[dict[str, Any]]:
        """What was told to whom, newest first; `state="given_up"` for what did not arrive."""
        return self.pages(f"projects/{project}/deliveries/", **filters)

    def resend(self, project: str, delivery: int) -> dict[str, Any]:
        """Have a message sent again, under the same `webhook-id`."""
        again: dict[str, Any] = self.post(f"projects/{project}/deliveries/{delivery}/resend/")
        return again

    def _send(
        self,
        method: str,
        path: str,
        *,
        filters: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        files: Mapping[str, tuple[str, bytes]] | None = None,
    ) -> httpx.Response:
        """The answer to a request, sent again while the server is busy or away."""
        for left in range(self._attempts - 1, -1, -1):
            try:
                answer = self._http.request(
                    method,
                    path,
                    params=filters or None,
                    json=body,
                    files=files,
                    headers=dict(headers or {}),
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
