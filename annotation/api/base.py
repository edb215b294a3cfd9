"""Base classes and helpers of all API operations."""

import base64
import binascii
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar
from urllib.parse import parse_qs

from django.conf import settings
from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import IntegrityError, transaction
from django.http import Http404, HttpRequest, HttpResponse, QueryDict, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.utils.http import parse_etags
from django.utils.translation import gettext as _
from rest_framework import exceptions, serializers
from rest_framework.authentication import SessionAuthentication
from rest_framework.generics import GenericAPIView
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.pagination import CursorPagination
from rest_framework.parsers import JSONParser
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from annotation.api.authentication import PersonThrottle, TokenAuthentication
from annotation.choices import Role, TokenScope
from annotation.errors import (
    AnsweredElsewhere,
    ImportErrors,
    LeaseLost,
    NotAllowed,
    Refusal,
    StaleAnswer,
)
from annotation.models import KeptAnswer, Membership, Project, User
from annotation.selectors import access
from annotation.services.judgments.drafts import DraftConflict
from annotation.services.reviews import AlreadyDecided

# Idempotency keys: a repeated request is executed once; its response is stored for a day.

KEPT_FOR = timedelta(hours=24)
LONGEST_KEY = 200
_KEY = re.compile(rf"[!-~]{{1,{LONGEST_KEY}}}")


class KeyReused(Refusal):
    """The key was sent with another request."""


def fingerprint_of(*, method: str, address: str, body: bytes) -> str:
    """Return a hash that is equal for repetitions of one request."""
    return hashlib.sha256(b"\0".join((method.encode(), address.encode(), body))).hexdigest()


def require_key(key: str) -> None:
    """Refuse an `Idempotency-Key` that is not 1 to `LONGEST_KEY` visible ASCII characters."""
    if not _KEY.fullmatch(key):
        raise Refusal(
            "invalid_idempotency_key",
            _("An Idempotency-Key has 1 to %(most)d visible ASCII characters, without spaces."),
            field="Idempotency-Key",
            most=LONGEST_KEY,
        )


def claim_key(*, user: User, key: str, fingerprint: str) -> KeptAnswer:
    """Return the row of a key: new (`status` 0), or with the stored response. Call inside a transaction.

    Waits until a concurrent request with the same key has ended. Raises `KeyReused` for a key that was sent
    with another request, `Refusal` for an invalid key.
    """
    assert_in_transaction()
    require_key(key)
    try:
        with transaction.atomic():
            return KeptAnswer.objects.create(user=user, key=key, fingerprint=fingerprint)
    except IntegrityError:
        stored = KeptAnswer.objects.get(user=user, key=key)
    if stored.fingerprint != fingerprint:
        raise KeyReused(
            "idempotency_key_reused",
            _("This Idempotency-Key was sent with another request. Draw a new one."),
            field="Idempotency-Key",
        )
    return stored


def keep_answer(*, row: KeptAnswer, status: int, body: str) -> None:
    """Store the response of a request under its key, in the transaction of the request."""
    assert_in_transaction()
    KeptAnswer.objects.filter(pk=row.pk).update(status=status, body=body)


def forget_answers(*, now: datetime | None = None) -> int:
    """Delete responses stored for longer than a day. Return how many."""
    oldest = (now or timezone.now()) - KEPT_FOR
    return KeptAnswer.objects.filter(created_at__lt=oldest).delete()[0]


def assert_in_transaction() -> None:
    """Raise `TransactionManagementError` outside a transaction: key and effect must commit together."""
    if not transaction.get_connection().in_atomic_block:
        raise transaction.TransactionManagementError("A key is claimed in the transaction of its request.")


# ── Base ──

# Errors of a request as problem details (RFC 9457).

MEDIA_TYPE = "application/problem+json"
_CONFLICTS = (LeaseLost, StaleAnswer, AnsweredElsewhere, DraftConflict, AlreadyDecided)
"""Refusals caused by a concurrent change: read again, then decide."""


class Precondition(exceptions.APIException):
    """The row has changed since it was read."""

    status_code = HTTPStatus.PRECONDITION_FAILED
    default_code = "changed_since_read"


def problem(
    status: int,
    detail: str,
    *,
    code: str,
    errors: Sequence[Mapping[str, str]] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a problem details response."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": int(status),
        "detail": detail,
        "code": code,
    }
    if errors:
        body["errors"] = [dict(error) for error in errors]
    return Response(body, status=status, headers=dict(headers or {}), content_type=MEDIA_TYPE)


def handle(error: Exception, context: Mapping[str, Any]) -> Response | None:
    """Return the response to a failed request; None for an internal error, which must not leak."""
    if isinstance(error, Refusal):
        return _refused(error)
    if isinstance(error, exceptions.ValidationError):
        faults = list(_faults(error.detail))
        detail = _("%(count)d values are wrong.") % {"count": len(faults)}
        return problem(422, detail, code="invalid_values", errors=faults)
    if isinstance(error, exceptions.APIException):
        code = str(getattr(error.detail, "code", error.default_code))
        return problem(error.status_code, _sentence(error), code=code, headers=_headers_of(error))
    if isinstance(error, Http404):
        return problem(404, _("There is nothing here, or nothing that you may see."), code="not_found")
    if isinstance(error, PermissionDenied):
        return problem(
            403, str(error) or _("Your role in this project does not allow this."), code="not_allowed"
        )
    if isinstance(error, RequestDataTooBig):
        most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        return problem(
            413,
            _("The body is larger than %(most)d bytes. Send less.") % {"most": most},
            code="body_too_large",
        )
    if isinstance(error, SuspiciousOperation):
        return problem(400, _("This request cannot be read."), code="request_not_readable")
    return None


def _refused(error: Refusal) -> Response:
    if isinstance(error, ImportErrors):
        faults = [{"field": "items", "message": fault} for fault in error.errors]
        return problem(422, error.headline, code=error.code, errors=faults)
    if isinstance(error, NotAllowed):
        return problem(403, error.message, code=error.code)
    status = 409 if isinstance(error, _CONFLICTS) else 422
    fields = [{"field": error.field, "message": error.message}] if error.field else []
    return problem(status, error.message, code=error.code, errors=fields)


def _faults(detail: Any, path: str = "") -> Iterator[dict[str, str]]:
    """Yield one entry for each message of a serializer."""
    if isinstance(detail, Mapping):
        for name, inner in detail.items():
            yield from _faults(inner, path if name == "non_field_errors" else f"{path}.{name}".lstrip("."))
    elif isinstance(detail, list):
        for index, inner in enumerate(detail):
            yield from _faults(inner, f"{path}.{index}" if isinstance(inner, dict) else path)
    elif detail:
        yield {
            "field": path or "body",
            "message": str(detail),
            "code": str(getattr(detail, "code", "invalid")),
        }


def _sentence(error: exceptions.APIException) -> str:
    detail = error.detail
    return " ".join(map(str, detail)) if isinstance(detail, list) else str(detail)


def _headers_of(error: exceptions.APIException) -> dict[str, str]:
    headers = {}
    wait: float | None = getattr(error, "wait", None)
    if isinstance(error, exceptions.Throttled) and wait is not None:
        headers["Retry-After"] = str(max(1, math.ceil(wait)))
    if header := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = header
    return headers


SAFE = ("GET", "HEAD", "OPTIONS")
_LONGEST_CURSOR = 500
_JSON_TYPES: dict[type[serializers.Field[Any, Any, Any, Any]], tuple[type, ...]] = {
    serializers.BooleanField: (bool,),
    serializers.CharField: (str,),
    serializers.UUIDField: (str,),
    serializers.IntegerField: (int, float),
    serializers.FloatField: (int, float),
}
_PAGE_SIZE = re.compile(r"[1-9][0-9]{0,3}")


class ApiView(APIView):
    """An operation for signed-in users and for programs with their tokens.

    A GET response carries an ETag and becomes 304 when the client has it. A POST with an `Idempotency-Key` is
    executed once, however often it is sent. Errors are problem details.
    """

    authentication_classes = (TokenAuthentication, SessionAuthentication)
    permission_classes = (IsAuthenticated,)
    throttle_classes = (PersonThrottle,)
    renderer_classes = (JSONRenderer,)
    parser_classes = (JSONParser,)

    changes: ClassVar[TokenScope] = TokenScope.MANAGE
    """The scope a token needs for methods that are not in `SAFE`."""
    keeps_answers: ClassVar[bool] = True
    """Store a POST's response for its `Idempotency-Key`. False where the response holds a secret, or where
    repeating the request is harmless."""

    @property
    def user(self) -> User:
        return self.request.user  # type: ignore[return-value]

    @classmethod
    def scope_of(cls, method: str) -> TokenScope:
        """Return the scope that a token needs."""
        return TokenScope.READ if method in SAFE else cls.changes

    def get_exception_handler(self) -> Any:
        return handle

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Authenticate, then arrange that a repeated POST is not executed again."""
        super().initial(request, *args, **kwargs)
        key = request.headers.get("Idempotency-Key")
        if request.method != "POST" or key is None or not hasattr(self, "post"):
            return
        require_key(key)
        if self.keeps_answers:
            # Django reads the handler after this method, so it gets the wrapped one.
            setattr(self, "post", partial(self._once, self.post, key))  # noqa: B010

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Answer the request, with an ETag on what was read."""
        answer = super().dispatch(request, *args, **kwargs)
        if isinstance(answer, HttpResponse):
            answer.headers.setdefault("Cache-Control", "private, no-cache")
            answer.headers.setdefault("Vary", "Authorization, Cookie, Accept-Language")
        if request.method not in ("GET", "HEAD") or answer.status_code != 200:
            return answer
        if not isinstance(answer, Response):
            return answer
        answer.render()
        answer["ETag"] = tag = etag_of(answer.content)
        known = parse_etags(request.headers.get("If-None-Match", ""))
        if "*" in known or tag in known:
            unchanged = HttpResponse(status=304)
            for name in ("ETag", "Cache-Control", "Vary"):
                unchanged[name] = answer[name]
            return unchanged
        return answer

    def require_superuser(self) -> None:
        """Refuse everyone but superusers."""
        if not self.user.is_superuser:
            raise PermissionDenied

    def require_match(self, shown: Any) -> None:
        """Refuse a change of a row that was modified since the sender read it (`If-Match`). `shown` is the
        current GET representation; call this while the row is locked."""
        etags = parse_etags(self.request.headers.get("If-Match", ""))
        if not etags or "*" in etags:
            return
        if etag_of(JSONRenderer().render(shown)) not in etags:
            raise Precondition(_("This was changed since you read it. Read it again, then decide."))

    def _once(
        self, post: Callable[..., Response], key: str, request: Request, *args: Any, **kwargs: Any
    ) -> Response:
        fingerprint = fingerprint_of(method="POST", address=request.get_full_path(), body=request.body)
        with transaction.atomic():
            stored = claim_key(user=self.user, key=key, fingerprint=fingerprint)
            if stored.status:
                body = json.loads(stored.body) if stored.body else None
                return Response(body, status=stored.status, headers={"Idempotent-Replayed": "true"})
            answer = post(request, *args, **kwargs)
            body = JSONRenderer().render(answer.data).decode() if answer.data is not None else ""
            keep_answer(row=stored, status=answer.status_code, body=body)
            return answer


class ProjectView(ApiView):
    """An operation on the project in the address, for members with a role.

    An outsider gets 404 as if the project did not exist; a member whose role is too low gets 403.
    """

    role: ClassVar[Role] = Role.MANAGER

    project: Project
    membership: Membership | None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Authenticate, load the project and require the role."""
        super().initial(request, *args, **kwargs)
        self.project = get_object_or_404(access.projects_for(self.user), slug=kwargs["slug"])
        self.membership = access.membership_of(self.user, self.project)
        self.project.visitor = self.user.pk, self.membership
        if not access.allows(self.user, self.membership, self.role_of(request.method or "GET")):
            raise PermissionDenied

    def role_of(self, method: str) -> Role:
        """Return the lowest role that may use a method."""
        return self.role


class Cursor(CursorPagination):
    """Pages that begin after a row, so that insertions shift nothing. Newest first by default."""

    page_size = 50
    page_size_query_param = "page_size"
    max_page_size = 500
    ordering = "-pk"
    cursor_query_description = "Where the page begins: as `next` or `previous` of another page say it."
    page_size_query_description = "How many entries a page has, 1 to 500."

    def get_page_size(self, request: Request) -> int:
        """Return the requested page size. Refuse anything but a number from 1 to `max_page_size`."""
        sent = request.query_params.getlist(self.page_size_query_param)
        if not sent:
            return self.page_size
        if len(sent) > 1 or not _PAGE_SIZE.fullmatch(sent[0]) or int(sent[0]) > self.max_page_size:
            raise exceptions.ParseError(
                _("page_size is a whole number, 1 to %(most)d.") % {"most": self.max_page_size},
                code="invalid_page_size",
            )
        return int(sent[0])

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        """Add the bounds of a page to the parameters of Django REST framework."""
        parameters: list[dict[str, Any]] = super().get_schema_operation_parameters(view)
        for parameter in parameters:
            if parameter["name"] == self.page_size_query_param:
                bounds = {"minimum": 1, "maximum": self.max_page_size, "default": self.page_size}
                parameter["schema"] = {"type": "integer", **bounds}
        return parameters

    def decode_cursor(self, request: Request) -> Any:
        """Refuse an invalid cursor before Django REST framework decodes it."""
        encoded = request.query_params.get(self.cursor_query_param)
        if encoded is not None:
            _require_cursor(encoded)
        return super().decode_cursor(request)


def _require_cursor(encoded: str) -> None:
    try:
        parameters = parse_qs(base64.b64decode(encoded.encode("ascii"), validate=True).decode("ascii"))
        numbers = [int(value) for values in parameters.values() for value in values]
    except (ValueError, binascii.Error) as error:
        raise exceptions.NotFound(_("This cursor leads nowhere. Begin with the first page.")) from error
    if len(encoded) > _LONGEST_CURSOR or any(not 0 <= number < 2**62 for number in numbers):
        raise exceptions.NotFound(_("This cursor leads nowhere. Begin with the first page."))


class Filters(serializers.Serializer[dict[str, Any]]):
    """The parameters of a list. Unknown names are refused: a misspelt filter would return too much."""

    def to_internal_value(self, data: Any) -> Any:
        ours = {"cursor", "page_size"}
        if unknown := set(data) - set(self.fields) - ours:
            names = ", ".join(sorted({*self.fields, *ours}))
            raise serializers.ValidationError(
                {
                    name: [_("There is no such filter. Known are: %(names)s.") % {"names": names}]
                    for name in unknown
                }
            )
        return super().to_internal_value(data)


class OldestFirst(Cursor):
    """Pages for lists that are read as they grow."""

    ordering = "pk"


class NoFilters(Filters):
    """A list without filters."""


class ListView(GenericAPIView[Any]):
    """A list with cursor and filters; mixed into an `ApiView`."""

    pagination_class = Cursor
    filters: ClassVar[type[Filters]] = NoFilters


def etag_of(content: bytes) -> str:
    """Return a strong ETag of the content."""
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def read_object(request: Request) -> Mapping[str, Any]:
    """Return the request body. Refuse anything but an object."""
    if not isinstance(request.data, Mapping):
        raise serializers.ValidationError({"body": [_("A JSON object is expected.")]})
    return request.data


def read_body(kind: type[serializers.Serializer[Any]], request: Request, **context: Any) -> dict[str, Any]:
    """Return the values of a body. Refuse missing or wrong values, naming the field."""
    sent = read_object(request)
    read = kind(data=sent, context=context)
    # All parts of a form are strings.
    if not isinstance(sent, QueryDict) and (wrong := _of_wrong_type(read, sent)):
        raise serializers.ValidationError(wrong)
    read.is_valid(raise_exception=True)
    values: dict[str, Any] = read.validated_data
    return values


def _of_wrong_type(field: serializers.Field[Any, Any, Any, Any], value: Any) -> Any:
    """Return messages for values whose JSON type differs from the documented one, nested like the values.

    Django REST framework reads 0 as a string or as false, and "1" as a number.
    """
    parts: Any = {}
    if isinstance(field, serializers.Serializer) and isinstance(value, Mapping):
        parts = {name: (field.fields[name], inner) for name, inner in value.items() if name in field.fields}
    elif isinstance(field, serializers.DictField) and isinstance(value, Mapping):
        parts = {name: (field.child, inner) for name, inner in value.items()}
    elif isinstance(field, serializers.ListField | serializers.ListSerializer) and isinstance(value, list):
        parts = {index: (field.child, inner) for index, inner in enumerate(value)}
    if parts:
        return {name: wrong for name, part in parts.items() if (wrong := _of_wrong_type(*part))}
    json_types = next((types for kind, types in _JSON_TYPES.items() if isinstance(field, kind)), None)
    if json_types is None or value is None or type(value) in json_types:
        return None
    return [field.error_messages["invalid"]]


def read_filters(kind: type[Filters], request: Request) -> Mapping[str, Any]:
    """Return the query parameters that were sent or have a default. Refuse unknown names and wrong values."""
    read = kind(data=request.query_params.dict())
    read.is_valid(raise_exception=True)
    return {name: value for name, value in read.validated_data.items() if value not in (None, "")}


def storable(value: Any) -> bool:
    """Return True if every database can store all strings of a JSON value: no NUL, no lone surrogate."""
    if isinstance(value, str):
        return "\x00" not in value and not any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, Mapping):
        return all(storable(name) and storable(inner) for name, inner in value.items())
    return all(map(storable, value)) if isinstance(value, list | tuple) else True


# Operations that stream a file.


class _WhateverIsAccepted(DefaultContentNegotiation):
    """Negotiation that ignores `Accept`: the address names the format."""

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> Any:
        """Return the first renderer, JSON, which renders errors."""
        first = next(iter(renderers))
        return first, first.media_type


class FileView(ApiView):
    """An operation that answers with a file."""

    content_negotiation_class = _WhateverIsAccepted


def attachment(pieces: Iterable[Any], *, name: str, content_type: str) -> StreamingHttpResponse:
    """Return a download that is sent in pieces, so that it may exceed the memory."""
    answer = StreamingHttpResponse(pieces, content_type=content_type)
    answer["Content-Disposition"] = f'attachment; filename="{name}"'
    return answer
