"""Errors of a request as problem details (RFC 9457)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.http import Http404
from django.utils.translation import gettext as _
from rest_framework import exceptions
from rest_framework.response import Response

from annotation.errors import (
    AnsweredElsewhere,
    ImportErrors,
    LeaseLost,
    NotAllowed,
    Refusal,
    StaleAnswer,
)
from annotation.services.judgments.drafts import DraftConflict
from annotation.services.quality.reviews import AlreadyDecided

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
