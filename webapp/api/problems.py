"""Errors that are answered outside of views, in the form of the interface that was asked."""

from http import HTTPStatus

from django.http import HttpRequest, JsonResponse


def for_programs(request: HttpRequest, *, status: HTTPStatus, detail: str, code: str) -> JsonResponse | None:
    """Return problem details below /api/, OpenAI's error object below /v1/, and None for pages.

    code: the error's name for programs.
    """
    if request.path_info.startswith("/api/"):
        body = {
            "type": "about:blank",
            "title": status.phrase,
            "status": int(status),
            "detail": detail,
            "code": code,
        }
        return JsonResponse(body, status=status, content_type="application/problem+json")
    if request.path_info.startswith("/v1/"):
        kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
        error = {"message": detail, "type": kind, "param": None, "code": code}
        return JsonResponse({"error": error}, status=status)
    return None
