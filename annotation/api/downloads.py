"""Operations whose answer is a file, written while it is sent."""

from collections.abc import Iterable
from typing import Any

from django.http import StreamingHttpResponse
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from annotation.api.base import ApiView


class _WhateverIsAccepted(DefaultContentNegotiation):
    """A file comes in the format that its address names, whatever the request says that it accepts."""

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> Any:
        """What is refused is told as JSON."""
        first = next(iter(renderers))
        return first, first.media_type


class FileView(ApiView):
    """An operation that answers with a file."""

    content_negotiation_class = _WhateverIsAccepted


def attachment(pieces: Iterable[Any], *, name: str, content_type: str) -> StreamingHttpResponse:
    """A file as it is sent: piece by piece, so that it may be longer than the memory is large."""
    answer = StreamingHttpResponse(pieces, content_type=content_type)
    answer["Content-Disposition"] = f'attachment; filename="{name}"'
    return answer
