"""Operations that stream a file."""

from collections.abc import Iterable
from typing import Any

from django.http import StreamingHttpResponse
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from annotation.api.base import ApiView


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
