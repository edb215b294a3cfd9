"""OpenAI's interface at /v1/ for programs with a token; answers come from the server of each checkpoint.

Cookies are not looked at, so no other site can have a browser ask. Errors have OpenAI's shape.
"""

import json
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import RequestDataTooBig
from django.db import connections
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from annotation.choices import TokenScope
from annotation.errors import NotAllowed
from annotation.models import ApiToken, User
from annotation.services.people.accounts import TooManyRequests, use_token
from training.engine import (
    ClientGoneError,
    EngineError,
    EngineUnavailableError,
    Exchange,
    Head,
    Upstream,
    relay,
    upstream_of,
)
from training.models import Checkpoint
from training.selectors.projects import served_models
from training.services.feedback.recording import Recorder, recorder_for

ANSWER_SECONDS = 300.0
"""For one whole answer, however it is given."""
ANSWERS_AT_ONCE = 4
"""Answers that one web process passes on at a time: its other threads are left to people."""

_room = threading.BoundedSemaphore(ANSWERS_AT_ONCE)
_PASSED = ("Content-Type", "Retry-After")
_CLIENT_CLOSED = 499

Endpoint = Callable[..., HttpResponseBase]


class ApiError(Exception):
    """A request that is not answered: OpenAI's error object with its status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.headers = status, code, param, dict(headers or {})

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = "invalid_request_error" if self.status < 500 and self.status != 429 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> JsonResponse:
        """The error as it is sent."""
        return JsonResponse(self.body(), status=self.status, headers=self.headers)


def endpoint(method: str, scope: TokenScope) -> Callable[[Endpoint], Endpoint]:
    """A view for programs with a token of that scope; it gets the token after the request."""

    def wrap(view: Endpoint) -> Any:
        @login_not_required
        @csrf_exempt
        @wraps(view)
        def answered(request: HttpRequest, **parts: Any) -> HttpResponseBase:
            try:
                if request.method not in (method, "HEAD" if method == "GET" else method):
                    message = f"This address takes {method} alone."
                    raise ApiError(405, message, code="method_not_allowed", headers={"Allow": method})
                return view(request, _token_of(request, scope), **parts)
            except ApiError as error:
                return error.response()

        return answered

    return wrap


@endpoint("GET", TokenScope.READ)
def models(request: HttpRequest, token: ApiToken) -> HttpResponse:
    """The checkpoints that answer. For who holds a token of someone who manages a project."""
    return JsonResponse(
        {"object": "list", "data": [_entry(checkpoint) for checkpoint in served_models(token.user)]}
    )


@endpoint("GET", TokenScope.READ)
def model(request: HttpRequest, token: ApiToken, name: str) -> HttpResponse:
    """One checkpoint that answers. For who holds a token of someone who manages a project."""
    return JsonResponse(_entry(_served(token.user, name)))


@endpoint("POST", TokenScope.GENERATE)
def chat_completions(request: HttpRequest, token: ApiToken) -> HttpResponseBase:
    """An answer to a chat, whole or streamed. For who holds a token of someone who manages a project."""
    return _pass_on(request, token, "/v1/chat/completions")


@endpoint("POST", TokenScope.GENERATE)
def completions(request: HttpRequest, token: ApiToken) -> HttpResponseBase:
    """Complete a text, whole or streamed. For who holds a token of someone who manages a project."""
    return _pass_on(request, token, "/v1/completions")


@login_not_required
@csrf_exempt
def unknown(request: HttpRequest, rest: str) -> HttpResponse:
    """Any other address below /v1/. For everyone."""
    return ApiError(404, f"There is nothing at /v1/{rest[:100]}.", code="unknown_url").response()


# ── Steps ─────────────────────────────────────────────────────────────────────────────


def _token_of(request: HttpRequest, scope: TokenScope) -> ApiToken:
    """Return the token. Raises `ApiError` 401, 403, 429."""
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    try:
        token = use_token(secret=secret.strip(), scope=scope) if scheme.lower() == "bearer" else None
    except NotAllowed as error:
        raise ApiError(403, error.message, code="insufficient_scope") from error
    except TooManyRequests as error:
        headers = {"Retry-After": str(error.seconds)}
        raise ApiError(429, error.message, code="rate_limit_exceeded", headers=headers) from error
    if token is None:
        message = "Wrong or missing token. Send 'Authorization: Bearer' with one that is good."
        raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
    return token


def _entry(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "id": checkpoint.name,
        "object": "model",
        "created": int(checkpoint.created_at.timestamp()),
        "owned_by": checkpoint.project.slug if checkpoint.project else "rondo",
    }


def _served(user: User, name: object) -> Checkpoint:
    checkpoint = served_models(user).filter(name=name).first() if isinstance(name, str) else None
    if checkpoint is None:
        message = f"The model '{str(name)[:120]}' does not exist. GET /v1/models lists those that do."
        raise ApiError(404, message, code="model_not_found", param="model")
    return checkpoint


def _pass_on(request: HttpRequest, token: ApiToken, path: str) -> HttpResponseBase:
    body = _body_of(request)
    checkpoint = _served(token.user, body.get("model"))
    upstream = _upstream(checkpoint)
    recorder = recorder_for(token=token, checkpoint=checkpoint, body=body)
    if not _room.acquire(blocking=False):
        message = f"{ANSWERS_AT_ONCE} answers are being given already. Ask again in a few seconds."
        raise ApiError(429, message, code="queue_full", headers={"Retry-After": "2"})
    answer = _Answer(request, upstream, path, body)
    try:
        head = answer.head()
        if body.get("stream") and head.status == 200:
            return _streamed(answer, recorder)
        content = b"".join(answer.pieces())
    except ClientGoneError:
        # Nobody reads this; the log does, and 499 is what servers write there.
        answer.close()
        return HttpResponse(status=_CLIENT_CLOSED)
    except EngineError as error:
        answer.close()
        raise _failed(error) from error
    except BaseException:
        answer.close()
        raise
    answer.close()
    return _whole(head, content, recorder)


def _body_of(request: HttpRequest) -> dict[str, Any]:
    try:
        body = json.loads(request.body)
    except RequestDataTooBig:
        most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        message = f"The body is larger than {most} bytes. Send less."
        raise ApiError(413, message, code="body_too_large") from None
    except (ValueError, RecursionError):
        raise ApiError(400, "The body is not JSON.", code="invalid_json") from None
    if not isinstance(body, dict):
        raise ApiError(400, "The body is not an object.", code="invalid_value")
    if "model" not in body:
        message = "Missing required parameter: 'model'."
        raise ApiError(400, message, code="missing_required_parameter", param="model")
    return body


def _upstream(checkpoint: Checkpoint) -> tuple[Upstream, bool]:
    """The server that answers for a checkpoint, and whether it is another than our own."""
    try:
        other = upstream_of(checkpoint)
    except EngineError as error:
        raise _failed(error) from error
    rondo_server = Upstream(
        url=settings.RONDO_MODEL_SERVER_URL, model=checkpoint.name, key=settings.RONDO_MODEL_SERVER_KEY
    )
    return other or rondo_server, other is not None


class _Answer:
    """An answer on its way, its place among those that are given at once, and the end of both."""

    def __init__(
        self, request: HttpRequest, upstream: tuple[Upstream, bool], path: str, body: Mapping[str, Any]
    ) -> None:
        server, is_other = upstream
        self._closed = False
        try:
            self._exchange: Exchange = relay().post(
                url=server.url.rstrip("/") + path,
                key=server.key,
                body=json.dumps({**body, "model": server.model}).encode(),
                seconds=ANSWER_SECONDS,
                guarded=is_other,
                is_gone=_disconnection(request),
            )
        except BaseException:
            _room.release()
            raise
        _let_go_of_database()

    def head(self) -> Head:
        """Yield the beginning."""
        return self._exchange.head()

    def pieces(self) -> Iterator[bytes]:
        """Its body as it comes."""
        return iter(self._exchange)

    def close(self) -> None:
        """Call it off if it goes on still, and give its place free; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._exchange.close()
            _room.release()


class _Stream:
    """The body of a streamed response. Django closes it at the end, and when the client has gone."""

    def __init__(self, answer: _Answer, recorder: Recorder | None) -> None:
        self._answer = answer
        self._recorder = recorder
        self._pieces = answer.pieces()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            piece = next(self._pieces)
            if self._recorder:
                self._recorder.add(piece)
            return piece
        except StopIteration:
            if self._recorder:
                self._recorder.end()
            raise
        except EngineError as error:
            self._recorder = None
            # The status line is long gone: an error can only be said inside the stream.
            self._pieces = iter(())
            return f"data: {json.dumps(_failed(error).body())}\n\n".encode()
        except ClientGoneError:
            self._recorder = None
            raise StopIteration from None

    def close(self) -> None:
        """Call the answer off; store it if all of it was sent."""
        self._answer.close()
        if self._recorder:
            self._recorder.store()


class _RecordedResponse(HttpResponse):
    """A whole answer that is stored once it was sent: a web server closes a response after its last byte."""

    recorder: Recorder | None = None

    def close(self) -> None:
        """Store the request, then end it."""
        if self.recorder:
            self.recorder.store()
        super().close()


def _streamed(answer: _Answer, recorder: Recorder | None) -> StreamingHttpResponse:
    response = StreamingHttpResponse(_Stream(answer, recorder), content_type="text/event-stream")
    response["Cache-Control"] = "no-cache"
    # A proxy before us must not collect the pieces.
    response["X-Accel-Buffering"] = "no"
    return response


def _whole(head: Head, content: bytes, recorder: Recorder | None) -> HttpResponse:
    """The server's answer as it is; that it refuses our own key is no fault of the one who asks."""
    if head.status in (401, 403) or 300 <= head.status < 400:
        message = "The model server refuses this request. Ask the administrator to look at its key."
        raise ApiError(502, message, code="model_server_refuses")
    response = _RecordedResponse(content, status=head.status)
    if recorder and head.status == 200:
        recorder.add(content)
        recorder.end()
        response.recorder = recorder
    headers = {name.lower(): value for name, value in head.headers.items()}
    for name in _PASSED:
        if value := headers.get(name.lower()):
            response[name] = value
    return response


def _failed(error: EngineError) -> ApiError:
    if isinstance(error, EngineUnavailableError):
        return ApiError(
            error.status or 503, str(error), code="model_server_unavailable", headers={"Retry-After": "5"}
        )
    return ApiError(502, str(error), code="model_server_not_set_up")


def _let_go_of_database() -> None:
    """An answer may take minutes; a connection to the database is not held meanwhile."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


def _disconnection(request: HttpRequest) -> Callable[[], bool]:
    """Return True where the client has closed its connection and the server shows its socket (gunicorn)."""
    client = request.META.get("gunicorn.socket")
    # One cannot look ahead into what is encrypted; there it is noticed when the next piece is written.
    if not isinstance(client, socket.socket) or isinstance(client, ssl.SSLSocket):
        return lambda: False

    def is_gone() -> bool:
        try:
            readable, _, _ = select.select([client], [], [], 0)
            return bool(readable) and client.recv(1, socket.MSG_PEEK) == b""
        except (OSError, ValueError):
            return True

    return is_gone
