"""Declarations of operations: each is one function, which the base turns into a view, an address and OpenAPI.

    webhooks = Resource(ProjectView, f"{PROJECT}webhooks/", tag="webhooks", rows=webhooks_of)
    webhook = webhooks.item("<int:pk>/")

    webhooks.add_list("webhooks_list", WebhookSerializer, "List the webhooks, newest first.")

    @webhook.patch(takes=WebhookSettingsSerializer, returns=WebhookSerializer, locks=True)
    def webhooks_change(view: ProjectView, webhook: WebhookEndpoint, values: Values) -> WebhookEndpoint:
        \"""Change the fields that are sent.\"""

The function's name is the operation id, its docstring the description. It gets the view (`user`, `project`,
`request`), the row in the address, the body or the filters, and the other parts of the address by name. It
returns what `returns` serializes, None for an empty response, or a response of its own.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from django.core.exceptions import ObjectDoesNotExist
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import Http404
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, path
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer

from annotation.api.base import (
    SAFE,
    ApiView,
    Cursor,
    FileView,
    Filters,
    ListView,
    NoFilters,
    ProjectView,
    read_body,
    read_filters,
)
from annotation.choices import Role, TokenScope

PROJECT = "projects/<slug:slug>/"
"""The address of a project, which `ProjectView` reads."""

Values = dict[str, Any]
"""A body that was read, or filters."""
V = TypeVar("V", bound=ApiView)
F = TypeVar("F", bound=Callable[..., Any])
Shape = type[Serializer[Any]]
Files = Mapping[tuple[int, str], Any]
_PART = re.compile(r"<\w+:(\w+)>")
_FOR = {Role.ANNOTATOR: "annotators", Role.REVIEWER: "reviewers", Role.MANAGER: "managers"}


def superusers(view: ApiView, *_row: object) -> None:
    """Refuse everyone but superusers."""
    view.require_superuser()


class Options(TypedDict, total=False):
    """Optional parts of a declaration."""

    takes: Shape | None
    """The body."""
    returns: Shape | list[Shape] | None
    """The response; in a list for several rows, nothing for an empty one."""
    status: int
    """Of the response; 204 for an empty one."""
    filters: type[Filters] | None
    """Query parameters."""
    files: Files | None
    """Types of a file that is returned, as drf-spectacular names them."""
    tag: str
    """The group in the documentation, where it differs from the resource's."""
    role: Role
    """The lowest role in the project, where it differs from the resource's."""
    scope: TokenScope
    """The scope that a token needs, where it differs from the view's."""
    requires: Callable[..., None]
    """Refuse some users, given the view and the row, before the body is read."""
    keeps_answers: bool
    """Store the response for the `Idempotency-Key`."""
    locks: bool
    """Lock the row and run in a transaction, as every change with an `If-Match` does."""
    schema: Mapping[str, Any]
    """More arguments of `extend_schema`."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One method of one address."""

    name: str
    description: str
    method: str
    resource: "Resource[Any]"
    address: str
    function: Callable[..., Any]
    pages: type[Cursor] | None
    model: type[Model] | None
    options: Options

    @property
    def role(self) -> Role:
        return self.options.get("role", self.resource.role)

    def handler(self) -> Callable[..., HttpResponseBase]:
        """Return the method of the view, with its OpenAPI declaration."""

        def handle(view: ApiView, request: Request, **parts: Any) -> HttpResponseBase:
            return self.answer(view, parts)

        handle.__name__, handle.__doc__ = self.method.lower(), self.description
        filters = self.options.get("filters")
        schema: Values = {
            "responses": self._responses(),
            **({"parameters": [filters]} if filters else {}),
            **({"request": self.options.get("takes")} if self.method not in SAFE else {}),
            **self.options.get("schema", {}),
        }
        tag = self.options.get("tag", self.resource.tag)
        declare = extend_schema(operation_id=self.name, tags=[tag], **schema)
        return declare(handle)

    def answer(self, view: ApiView, parts: Values) -> HttpResponseBase:
        """Execute the operation. `parts`: of the address."""
        parts = {name: part for name, part in parts.items() if name != "slug" or not self.resource.in_project}
        arguments: list[Any] = self.resource.find(view, parts)
        if requires := self.options.get("requires"):
            requires(view, *arguments)
        if self.pages:
            return self._page(view, arguments, parts)
        if takes := self.options.get("takes"):
            arguments.append(read_body(takes, view.request))
        if filters := self.options.get("filters"):
            arguments.append(read_filters(filters, view.request))
        read = self._compared_with(view)
        if read is None and not self.options.get("locks"):
            return self._response(view, self.function(view, *arguments, **parts))
        with transaction.atomic():
            row = arguments[:1] if self.resource.loads else []
            if row:
                _lock(row[0])
            if read:
                view.require_match(read._serialized(view, read.function(view, *row)))
            return self._response(view, self.function(view, *arguments, **parts))

    def _compared_with(self, view: Any) -> "Operation | None":
        """Return the operation whose response an `If-Match` names, where the request has one."""
        if self.method not in ("PUT", "PATCH") or "If-Match" not in view.request.headers:
            return None
        read: Operation | None = view.operations.get("GET")
        return None if read is None or read.pages else read

    def _page(self, view: Any, arguments: list[Any], parts: Values) -> Response:
        query = read_filters(view.filters, view.request)
        if self.options.get("filters"):
            arguments.append(query)
        rows = self.function(view, *arguments, **parts)
        # A list may be made of the rows of a page.
        rows, made = rows if isinstance(rows, tuple) else (rows, list)
        page = made(view.paginate_queryset(rows) or [])
        response: Response = view.get_paginated_response(self._serialized(view, page))
        return response

    def _response(self, view: ApiView, result: Any) -> HttpResponseBase:
        if isinstance(result, HttpResponseBase):
            return result
        if not self.options.get("returns"):
            return Response(result, status=self.options.get("status", 204 if result is None else 200))
        return Response(self._serialized(view, result), status=self.options.get("status", 200))

    def _serialized(self, view: ApiView, result: Any) -> Any:
        returns = self.options.get("returns")
        if not returns:
            return result
        context = {"view": view, "request": view.request}
        if self.resource.context:
            context |= self.resource.context(view)
        if isinstance(returns, list):
            return returns[0](result, many=True, context=context).data
        return returns(result, context=context).data

    def _responses(self) -> Any:
        if files := self.options.get("files"):
            return files
        returns = self.options.get("returns")
        shape = returns[0](many=True) if isinstance(returns, list) else returns
        return {self.options.get("status", 200 if shape else 204): shape}


class Resource(Generic[V]):
    """An address below /api/v1/ with its operations, and the rows that it names.

    view: the base of its views. rows: the rows that may be read here; `item` finds one of them. find: return
    the row in the address, where `rows` does not suffice; it gets the view and the parts of the address by
    name. context: of serializers.
    """

    def __init__(
        self,
        view: type[V],
        address: str,
        *,
        tag: str,
        role: Role | None = None,
        scope: TokenScope | None = None,
        rows: Callable[[V], QuerySet[Any]] | None = None,
        find: Callable[..., Any] | None = None,
        context: Callable[[V], Values] | None = None,
    ) -> None:
        self.view, self.address, self.tag = view, address, tag
        self.role: Role = role or (view.role if issubclass(view, ProjectView) else Role.MANAGER)
        self.scope = scope or view.changes
        self.rows, self._find, self.context = rows, find, context
        self.loads = find is not None
        self.in_project = issubclass(view, ProjectView)
        self._operations: list[Operation] = []
        self.is_item = False

    def item(
        self,
        address: str,
        *,
        rows: Callable[[V], QuerySet[Any]] | None = None,
        find: Callable[..., Any] | None = None,
    ) -> "Resource[V]":
        """Return the resource of one row."""
        rows = rows or self.rows
        item = Resource(
            self.view,
            self.address + address,
            tag=self.tag,
            role=self.role,
            scope=self.scope,
            find=find or (lambda view, **parts: get_object_or_404(rows(view), **parts) if rows else None),
            context=self.context,
        )
        item._operations, item.is_item = self._operations, True
        return item

    def find(self, view: V, parts: Values) -> list[Any]:
        """Return the row in the address, if it names one. Take its parts out of `parts`."""
        if self._find is None:
            return []
        names = [name for name in _PART.findall(self.address) if name in parts]
        return [self._find(view, **{name: parts.pop(name) for name in names})]

    def get(self, address: str = "", **options: Unpack[Options]) -> Callable[[F], F]:
        """Declare a function that reads."""
        return self._declare("GET", address, options)

    def post(self, address: str = "", **options: Unpack[Options]) -> Callable[[F], F]:
        """Declare a function that creates or does something."""
        return self._declare("POST", address, options)

    def put(self, address: str = "", **options: Unpack[Options]) -> Callable[[F], F]:
        """Declare a function that replaces."""
        return self._declare("PUT", address, options)

    def patch(self, address: str = "", **options: Unpack[Options]) -> Callable[[F], F]:
        """Declare a function that changes the fields that are sent."""
        return self._declare("PATCH", address, options)

    def delete(self, address: str = "", **options: Unpack[Options]) -> Callable[[F], F]:
        """Declare a function that deletes."""
        return self._declare("DELETE", address, options)

    def get_list(
        self,
        shape: Shape,
        address: str = "",
        *,
        pages: type[Cursor] = Cursor,
        model: type[Model] | None = None,
        **options: Unpack[Options],
    ) -> Callable[[F], F]:
        """Declare a function that returns the rows of a list, which is sent page by page.

        It may also return a function that makes the entries of the rows of a page. model: of the rows, where
        `shape` has none.
        """
        options["returns"] = [shape]
        return self._declare("GET", address, options, pages=pages, model=model or shape.Meta.model)  # type: ignore[attr-defined]

    def add_list(self, name: str, shape: Shape, description: str, **more: Any) -> None:
        """Declare the list of `rows`, which filters named after lookups narrow."""
        rows = self.rows
        if rows is None:
            raise ValueError(f"{name} has no rows.")
        self.get_list(shape, **more)(
            _named(name, description, lambda view, query=(): rows(view).filter(**dict(query)))
        )

    def add_read(self, name: str, shape: Shape, description: str, address: str = "") -> None:
        """Declare reading the row in the address."""
        self.get(address, returns=shape)(_named(name, description, lambda _view, row: row))

    @property
    def urls(self) -> Sequence[URLPattern]:
        """The URL patterns of the operations here and of items."""
        addresses: dict[str, dict[str, Operation]] = {}
        for operation in self._operations:
            addresses.setdefault(operation.address, {})[operation.method] = operation
        return [
            path(address, _view(operations).as_view(), name=_name(address))
            for address, operations in addresses.items()
        ]

    def _declare(
        self,
        method: str,
        address: str,
        options: Options,
        *,
        pages: type[Cursor] | None = None,
        model: type[Model] | None = None,
    ) -> Callable[[F], F]:
        def declare(function: F) -> F:
            operation = Operation(
                name=function.__name__,
                description=function.__doc__ or "",
                method=method,
                resource=self,
                address=self.address + address,
                function=function,
                pages=pages,
                model=model,
                options=options,
            )
            self._operations.append(operation)
            return function

        return declare


class _OperationView(ApiView):
    """A view made of declared operations."""

    operations: Mapping[str, Operation] = {}
    default_role = Role.MANAGER

    @classmethod
    def scope_of(cls, method: str) -> TokenScope:
        """Return the scope that a token needs."""
        operation = cls.operations.get(method)
        if method in SAFE or operation is None:
            return super().scope_of(method)
        return operation.options.get("scope", operation.resource.scope)

    def role_of(self, method: str) -> Role:
        """Return the lowest role that may use a method."""
        operation = self.operations.get("GET" if method in SAFE else method)
        return operation.role if operation else self.default_role


def urls_of(*modules: ModuleType) -> list[URLPattern]:
    """Return the addresses of the resources of modules."""
    resources = [
        value for module in modules for value in vars(module).values() if isinstance(value, Resource)
    ]
    return [url for resource in resources if not resource.is_item for url in resource.urls]


def _view(operations: Mapping[str, Operation]) -> type[ApiView]:
    """Return the view of an address."""
    first = next(iter(operations.values()))
    attributes: Values = {operation.method.lower(): operation.handler() for operation in operations.values()}
    bases: list[type] = [_OperationView]
    if (read := operations.get("GET")) and read.pages and read.model:
        bases.append(ListView)
        attributes |= {
            "serializer_class": read.options["returns"][0],  # type: ignore[index]  # a list returns one
            "queryset": read.model._default_manager.none(),
            "filters": read.options.get("filters") or NoFilters,
            "pagination_class": read.pages,
        }
    if read and read.options.get("files"):
        bases.append(FileView)
    if (post := operations.get("POST")) and "keeps_answers" in post.options:
        attributes["keeps_answers"] = post.options["keeps_answers"]
    people = _FOR[first.role] if first.resource.in_project else "everyone"
    attributes |= {
        "__doc__": f"{', '.join(operation.name for operation in operations.values())}. For {people}.",
        "__module__": first.function.__module__,
        "operations": operations,
        "default_role": first.resource.role,
    }
    return type(first.name, (*bases, first.resource.view), attributes)


def _name(address: str) -> str:
    """Return the name of an address: its parts, with those of the project left out."""
    return "api-" + _PART.sub(r"\1", address).rstrip("/").replace("/", "-")


def _named(name: str, description: str, function: Callable[..., Any]) -> Callable[..., Any]:
    function.__name__, function.__doc__ = name, description
    return function


def _lock(row: Model) -> None:
    """Lock a row and read it again. 404 if it was deleted meanwhile."""
    try:
        row.refresh_from_db(
            from_queryset=type(row)._base_manager.select_for_update(of=("self",), no_key=True)
        )
    except ObjectDoesNotExist as error:
        raise Http404 from error
