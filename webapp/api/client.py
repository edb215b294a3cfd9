"""A client of Rondo's API. Needs httpx only: the file can be copied into any program.

    from webapp.api.client import Rondo

    with Rondo("http://127.0.0.1:8000", token="rondo_…") as rondo:
        for judgment in rondo.pages("projects/tea/judgments/", round=1):
            print(judgment["verdict"], judgment["ranks"])

Import and export files, and verify webhook messages:

        done = rondo.import_file("tea", "votes.csv", mapping={"prompt": "question"})
        account = rondo.export_file("tea", "trl-preference", "pairs.jsonl", rounds="1,2")
    event = verified(secret, request.headers, request.body)

Lists are fetched page by page while iterating. Failed and throttled requests are repeated with the same
`Idempotency-Key`, so nothing is executed twice. A refusal raises `Problem`.
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
    """A refusal by the server, with its problem details."""

    def __init__(self, status: int, detail: str, errors: list[dict[str, str]], *, code: str = "") -> None:
        fields = "; ".join(f"{error['field']}: {error['message']}" for error in errors)
        super().__init__(f"{status}: {detail}{f' ({fields})' if fields else ''}")
        self.status = status
        self.detail = detail
        self.code = code
        """The reason for programs; it stays when `detail` is worded otherwise."""
        self.errors = errors
        """The fields that are wrong, each with `field` and `message`."""


class SignatureError(Exception):
    """A message without a valid, recent signature: anyone may have sent it."""


def verified(
    secret: str, headers: Mapping[str, str], body: bytes, *, now: float | None = None
) -> dict[str, Any]:
    """Verify the signature of a webhook message and return its event. Raise `SignatureError`.

    secret: `whsec_…`, as returned when the webhook was created or rotated. headers: of the request, in any
    case. body: the raw bytes. Messages older than five minutes are refused as replays; detect repetitions
    within them by the header `webhook-id`.
    """
    values = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, sent = values["webhook-id"], values["webhook-timestamp"]
        age = abs((time.time() if now is None else now) - int(sent))
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        signatures = values["webhook-signature"].split(" ")
    except (KeyError, ValueError) as error:
        raise SignatureError("The message bears no signature, or the secret is none.") from error
    if age > _TOLERANCE:
        raise SignatureError("The message was signed too long ago.")
    signed = b".".join((message_id.encode(), sent.encode(), body))
    expected = b"v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256))
    if not any(hmac.compare_digest(expected, signature.encode()) for signature in signatures):
        raise SignatureError("The signature is not that of this secret.")
    event: dict[str, Any] = json.loads(body)
    return event


class Rondo:
    """A connection to one installation, authenticated by a token.

    address: such as `https://rondo.example.org`. attempts: tries per request. sleep: waits between two tries,
    in seconds.
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
        """Close the connection."""
        self._http.close()

    def get(self, path: str, **filters: Any) -> Any:
        """Read `path` below /api/v1/."""
        return self._send("GET", path, filters=filters).json()

    def pages(self, path: str, **filters: Any) -> Iterator[dict[str, Any]]:
        """Yield every entry of a list, page by page."""
        page = self.get(path, **filters)
        while True:
            yield from page["results"]
            if not page["next"]:
                return
            page = self._send("GET", page["next"]).json()

    def post(self, path: str, body: Mapping[str, Any] | None = None, *, key: str | None = None) -> Any:
        """Execute an operation once, however often it has to be sent. Return its response or None.

        key: an `Idempotency-Key` with which the program can repeat the request after a restart.
        """
        headers = {"Idempotency-Key": key or str(uuid.uuid4())}
        return _content(self._send("POST", path, body=body or {}, headers=headers))

    def change(self, path: str, change: Callable[[Any], Mapping[str, Any]], *, method: str = "PATCH") -> Any:
        """Read `path` and send the result of `change`; repeat both if somebody else changed it in between."""
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
        """Delete `path`."""
        self._send("DELETE", path)

    def next_assignment(self, project: str) -> dict[str, Any] | None:
        """Return the next comparison to judge; None if there is none."""
        response: dict[str, dict[str, Any] | None] = self.post(f"projects/{project}/assignments/next/")
        return response["assignment"]

    def judge(
        self, project: str, assignment: Mapping[str, Any], judgment: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Submit a judgment of an assignment."""
        path = f"projects/{project}/assignments/{assignment['id']}/judgment/"
        response: dict[str, dict[str, Any]] = self.post(path, judgment)
        return response["judgment"]

    def feedback(self, completion: str, *, user: str = "", **fields: Any) -> dict[str, Any]:
        """Give feedback of an end user on a completion of `/v1`, by its id.

        fields: `thumb="up"` or `"down"`, `rating=4`, `rewrite="…"`, or `alternative="chatcmpl-…"`; `choice=1`
        for another completion than the first. Needs a token of the scope `feedback`.
        """
        for again in range(self._attempts - 1, -1, -1):
            try:
                stored: dict[str, Any] = self.post(
                    "feedback/", {"completion": completion, "user": user, **fields}
                )
                return stored
            except Problem as problem:
                # It is stored a moment after its last byte.
                if problem.status != 404 or not again:
                    raise
            self._sleep(_pause(self._attempts - again))
        raise ValueError("A request is sent once at least: attempts has to be 1 or more.")

    def import_file(
        self,
        project: str,
        path: str | Path,
        *,
        format_name: str | None = None,
        mapping: Mapping[str, str | Sequence[str]] | None = None,
        leave_out: Sequence[str] | None = None,
        meanings: Mapping[str, str] | None = None,
        skip_bad: bool = False,
        seconds: float = 3600.0,
    ) -> dict[str, Any]:
        """Import a file, wait, and return the import with `state`, `counts` and `errors`.

        mapping: role → column of the file, or columns; guessed, like the format, if left out. leave_out:
        columns that are not read. meanings: value of the winner → the name of an answer, `equal`,
        `both_good`, `both_bad` or `cannot_judge`. Importing the same file twice adds nothing. Raise `Problem`
        on refusal, also of a file with a column that may be a verdict and has no role, and `TimeoutError`
        after `seconds`.
        """
        files = {"file": (Path(path).name, Path(path).read_bytes())}
        record = self._send("POST", f"projects/{project}/imports/", files=files).json()
        address = f"projects/{project}/imports/{record['id']}/"
        plan = {
            "format": format_name,
            "mapping": dict(mapping) if mapping is not None else None,
            "leave_out": list(leave_out) if leave_out is not None else None,
            "meanings": dict(meanings) if meanings is not None else None,
        }
        if corrections := {name: value for name, value in plan.items() if value is not None}:
            self._send("PATCH", address, body=corrections)
        record = self.post(f"{address}start/", {"skip_bad": skip_bad})
        for _look in range(max(1, int(seconds / _LOOK_EVERY))):
            if record["state"] not in _GOES_ON:
                return dict(record)
            self._sleep(_LOOK_EVERY)
            record = self.get(address)
        raise TimeoutError(f"{Path(path).name} is still {record['state']} after {seconds:g} seconds.")

    def export_file(self, project: str, format_name: str, path: str | Path, **filters: Any) -> dict[str, Any]:
        """Write a project's judgments to a file and return the manifest of the export.

        filters: `rounds` ("1,2"), `split`, `machines`. An interrupted download leaves no file.
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
        """Create a webhook. Only this response holds its `secret`: store it for `verified`."""
        body = {"url": url, "events": list(events), "description": description}
        made: dict[str, Any] = self.post(f"projects/{project}/webhooks/", body)
        return made

    def deliveries(self, project: str, **filters: Any) -> Iterator[dict[str, Any]]:
        """Yield webhook deliveries, newest first; `state="given_up"` for undelivered ones."""
        return self.pages(f"projects/{project}/deliveries/", **filters)

    def resend(self, project: str, delivery: int) -> dict[str, Any]:
        """Send a message again, with the same `webhook-id`."""
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
        """Send a request, repeated while the server is busy or unreachable."""
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
                self._sleep(_requested_pause(answer) or _pause(self._attempts - left))
                continue
            if answer.is_error:
                raise _problem(answer)
            return answer
        raise ValueError("A request is sent once at least: attempts has to be 1 or more.")


def _content(answer: httpx.Response) -> Any:
    return answer.json() if answer.content else None


def _pause(attempt: int) -> float:
    """Return an exponential pause: 0.5, 1, 2, … seconds."""
    return float(min(0.5 * 2 ** (attempt - 1), _LONGEST_WAIT))


def _requested_pause(answer: httpx.Response) -> float | None:
    """Return the pause that the server asks for, capped."""
    seconds = answer.headers.get("Retry-After", "")
    return min(float(seconds), _LONGEST_WAIT) if seconds.isdecimal() else None


def _problem(answer: httpx.Response) -> Problem:
    try:
        details = answer.json()
        code = details.get("code", "")
        return Problem(answer.status_code, details["detail"], details.get("errors", []), code=code)
    except (ValueError, KeyError, TypeError):
        return Problem(answer.status_code, answer.reason_phrase, [])
