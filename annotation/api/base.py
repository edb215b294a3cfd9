"""What all operations of the API share."""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar
from urllib.parse import parse_qs

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.utils.http import parse_etags
from django.utils.translation import gettext as _
from rest_framework import exceptions, serializers
from rest_framework.authentication import SessionAuthentication
from rest_framework.generics import GenericAPIView
from rest_framework.pagination import CursorPagination
from rest_framework.parsers import JSONParser
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from annotation import selectors
from annotation.api.authentication import PersonThrottle, TokenAuthentication
from annotation.api.problems import Precondition, handle
from annotation.choices import Role, TokenScope
from annotation.models import Membership, Project, User
from annotation.services.kept_answers import claim_key, fingerprint_of, keep_answer, require_key

SAFE = ("GET", "HEAD", "OPTIONS")
_LONGEST_CURSOR = 500
_PAGE_SIZE = re.compile(r"[1-9][0-9]{0,3}")


class ApiView(APIView):
    """An operation for people who are signed in, and for programs with their tokens.

    A GET bears an ETag and answers 304 to one that is known. A POST with an `Idempotency-Key` is done
    once, however often it is sent. What is refused is told as problem details.
    """

    authentication_classes = (TokenAuthentication, SessionAuthentication)
    permission_classes = (IsAuthenticated,)
    throttle_classes = (PersonThrottle,)
    renderer_classes = (JSONRenderer,)
    parser_classes = (JSONParser,)

    changes: ClassVar[TokenScope] = TokenScope.MANAGE
    """The scope that a token needs for whatever is no mere reading."""
    keeps_answers: ClassVar[bool] = True
    """Whether a POST's answer is kept for its `Idempotency-Key`; not where the answer holds a secret, nor
    where asking again gives the same by itself."""

    @property
    def user(self) -> User:
        """Who asks."""
        return self.request.user  # type: ignore[return-value]

    @classmethod
    def scope_of(cls, method: str) -> TokenScope:
        """The scope that a token needs."""
        return TokenScope.READ if method in SAFE else cls.changes

    def get_exception_handler(self) -> Any:
        """Everything that is refused is told in one way."""
        return handle

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """After who asks is known: a POST that was sent before is not done again."""
        super().initial(request, *args, **kwargs)
        key = request.headers.get("Idempotency-Key")
        if request.method != "POST" or key is None or not hasattr(self, "post"):
            return
        require_key(key)
        if self.keeps_answers:
            # Django takes the handler from the view after this: it gets this one, which asks the other.
            setattr(self, "post", partial(self._once, self.post, key))  # noqa: B010

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Answer, and give what was read its ETag."""
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
        """Refuse everybody else."""
        if not self.user.is_superuser:
            raise PermissionDenied

    def require_match(self, shown: Any) -> None:
        """Refuse a change of what is no longer as the sender read it (`If-Match`). `shown` is what a GET
        would answer now; call it while the row is locked."""
        wanted = parse_etags(self.request.headers.get("If-Match", ""))
        if not wanted or "*" in wanted:
            return
        if etag_of(JSONRenderer().render(shown)) not in wanted:
            raise Precondition(_("This was changed since you read it. Read it again, then decide."))

    def _once(
        self, post: Callable[..., Response], key: str, request: Request, *args: Any, **kwargs: Any
    ) -> Response:
        fingerprint = fingerprint_of(method="POST", address=request.get_full_path(), body=request.body)
        with transaction.atomic():
            kept = claim_key(user=self.user, key=key, fingerprint=fingerprint)
            if kept.status:
                body = json.loads(kept.body) if kept.body else None
                return Response(body, status=kept.status, headers={"Idempotent-Replayed": "true"})
            answer = post(request, *args, **kwargs)
            body = JSONRenderer().render(answer.data).decode() if answer.data is not None else ""
            keep_answer(kept=kept, status=answer.status_code, body=body)
            return answer


class ProjectView(ApiView):
    """An operation within the project of the address, for members with a role.

    An outsider gets 404 as if the project did not exist; a member whose role is too low gets 403.
    """

    role: ClassVar[Role] = Role.MANAGER
    role_to_change: ClassVar[Role | None] = None
    """The role for what is no mere reading, where it is another."""

    project: Project
    membership: Membership | None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Who asks is known; what of is looked up, and whether they may."""
        super().initial(request, *args, **kwargs)
        self.project = get_object_or_404(selectors.projects_for(self.user), slug=kwargs["slug"])
        self.membership = selectors.membership_of(self.user, self.project)
        self.project.visitor = self.user.pk, self.membership
        role = self.role if request.method in SAFE else self.role_to_change or self.role
        if not selectors.allows(self.user, self.membership, role):
            raise PermissionDenied


class Cursor(CursorPagination):
    """Pages that begin after a row: what is added meanwhile shifts nothing. Newest first unless said."""

    page_size = 50
    page_size_query_param = "page_size"
    max_page_size = 500
    ordering = "-pk"
    cursor_query_description = "Where the page begins: as `next` or `previous` of another page say it."
    page_size_query_description = "How many entries a page has, 1 to 500."

    def get_page_size(self, request: Request) -> int:
        """The number of entries that was asked for. Refuses what is no number of 1 to `max_page_size`."""
        sent = request.query_params.getlist(self.page_size_query_param)
        if not sent:
            return self.page_size
        if len(sent) > 1 or not _PAGE_SIZE.fullmatch(sent[0]) or int(sent[0]) > self.max_page_size:
            raise exceptions.ParseError(
                _("page_size is a whole number, 1 to %(most)d.") % {"most": self.max_page_size}
            )
        return int(sent[0])

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        """As Django REST framework does, with the bounds of a page."""
        parameters: list[dict[str, Any]] = super().get_schema_operation_parameters(view)
        for parameter in parameters:
            if parameter["name"] == self.page_size_query_param:
                bounds = {"minimum": 1, "maximum": self.max_page_size, "default": self.page_size}
                parameter["schema"] = {"type": "integer", **bounds}
        return parameters

    def decode_cursor(self, request: Request) -> Any:
        """As Django REST framework does; a cursor that was made up is refused instead of failing later."""
        encoded = request.query_params.get(self.cursor_query_param)
        if encoded is not None:
            _require_cursor(encoded)
        return super().decode_cursor(request)


def _require_cursor(encoded: str) -> None:
    try:
        told = parse_qs(base64.b64decode(encoded.encode("ascii"), validate=True).decode("ascii"))
        numbers = [int(value) for values in told.values() for value in values]
    except (ValueError, binascii.Error) as error:
        raise exceptions.NotFound(_("This cursor leads nowhere. Begin with the first page.")) from error
    if len(encoded) > _LONGEST_CURSOR or any(not 0 <= number < 2**62 for number in numbers):
        raise exceptions.NotFound(_("This cursor leads nowhere. Begin with the first page."))


class Filters(serializers.Serializer[dict[str, Any]]):
    """The parameters of a list. What is not among them is refused: a filter that is misspelled and so
    ignored would give too much."""

    def to_internal_value(self, data: Any) -> Any:
        """The values that were sent."""
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
    """For lists that are read as they grow."""

    ordering = "pk"


class NoFilters(Filters):
    """A list without filters."""


class ListView(GenericAPIView[Any]):
    """A list with cursor and filters; mixed into an `ApiView`."""

    pagination_class = Cursor
    filters: ClassVar[type[Filters]] = NoFilters

    def asked(self) -> Mapping[str, Any]:
        """The filters of this request. Refuses what is no filter, and values that none has."""
        return read_filters(self.filters, self.request)

    def rows(self, asked: Mapping[str, Any]) -> QuerySet[Any]:
        """What there is to list, by the filters that were sent."""
        raise NotImplementedError

    def listed(self) -> Response:
        """The page that was asked for."""
        page = self.paginate_queryset(self.rows(self.asked()))
        return self.get_paginated_response(self.get_serializer(page, many=True).data)


def etag_of(content: bytes) -> str:
    """A strong ETag of what is sent."""
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def read_object(request: Request) -> Mapping[str, Any]:
    """A body as it was sent. Refuses what is no object."""
    if not isinstance(request.data, Mapping):
        raise serializers.ValidationError({"body": [_("A JSON object is expected.")]})
    return request.data


def read_body(kind: type[serializers.Serializer[Any]], request: Request, **context: Any) -> dict[str, Any]:
    """The values of a body. Refuses what is missing or wrong, naming the field."""
    read = kind(data=read_object(request), context=context)
    read.is_valid(raise_exception=True)
    values: dict[str, Any] = read.validated_data
    return values


def read_filters(kind: type[Filters], request: Request) -> Mapping[str, Any]:
    """The parameters of a request that were sent, or have a default. Refuses others, and wrong values."""
    read = kind(data=request.query_params.dict())
    read.is_valid(raise_exception=True)
    return {name: value for name, value in read.validated_data.items() if value not in (None, "")}


def storable(value: Any) -> bool:
    """Whether every database takes all texts within a JSON value: no NUL, no half of a surrogate pair."""
    if isinstance(value, str):
        return "\x00" not in value and not any("\ud800" <= sign <= "\udfff" for sign in value)
    if isinstance(value, Mapping):
        return all(storable(name) and storable(one) for name, one in value.items())
    return all(map(storable, value)) if isinstance(value, list | tuple) else True
