"""The API as a whole: its OpenAPI document, its documentation, and what is not there."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ApiView


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One operation as the documentation shows it."""

    method: str
    path: str
    name: str
    description: str
    parameters: list[dict[str, Any]]
    body: str
    """The schema of what is sent; empty where nothing is."""
    answers: list[tuple[str, str, str]]
    """Status, what it means, and the schema of the answer, empty where it has no body."""


class SchemaView(ApiView):
    """The OpenAPI document. For everyone."""

    @extend_schema(exclude=True)
    def get(self, request: Request) -> Response:
        """Every operation with what it takes and answers, as OpenAPI 3.1."""
        return Response(document())


class UnknownView(ApiView):
    """Any other address below /api/v1/. For everyone."""

    @extend_schema(exclude=True)
    def get(self, request: Request, rest: str) -> Response:
        """There is nothing here."""
        raise Http404

    post = put = patch = delete = get


@require_safe
@cache_control(private=True, max_age=300)
def docs(request: HttpRequest) -> HttpResponse:
    """What the API can do, operation by operation. For everyone."""
    told = document()
    context = {
        "info": told["info"],
        "groups": _groups(told),
        "schemas": [
            (name, schema.get("description", ""), _fields(schema))
            for name, schema in sorted(told["components"]["schemas"].items())
        ],
    }
    return render(request, "api/docs.html", context)


@lru_cache(maxsize=1)
def document() -> dict[str, Any]:
    """The OpenAPI document; it is the same as long as the program runs."""
    generator = SchemaGenerator(api_version="v1")  # type: ignore[no-untyped-call]  # untyped there
    told: dict[str, Any] = generator.get_schema(public=True)  # type: ignore[no-untyped-call]
    return told


def _groups(told: dict[str, Any]) -> list[tuple[str, list[Operation]]]:
    found: dict[str, list[Operation]] = {tag["name"]: [] for tag in told["tags"]}
    for path, methods in told["paths"].items():
        for method, operation in methods.items():
            found[operation["tags"][0]].append(_operation(method, path, operation))
    return list(found.items())


def _operation(method: str, path: str, operation: dict[str, Any]) -> Operation:
    return Operation(
        method=method.upper(),
        path=path,
        name=operation["operationId"],
        description=operation["description"],
        parameters=[
            {**one, "kind": _kind(one["schema"]), "description": one.get("description", "")}
            for one in operation.get("parameters", [])
        ],
        body=_content(operation.get("requestBody", {})),
        answers=[
            (status, one["description"], _content(one))
            for status, one in sorted(operation["responses"].items())
        ],
    )


def _content(part: dict[str, Any]) -> str:
    kinds = [_kind(one["schema"]) for one in part.get("content", {}).values() if "schema" in one]
    return kinds[0] if kinds else ""


def _fields(schema: dict[str, Any]) -> list[tuple[str, str, bool, str]]:
    """Name, kind, whether it must be there, and what it means."""
    required = schema.get("required", ())
    return [
        (name, _kind(one), name in required, one.get("description", ""))
        for name, one in schema.get("properties", {}).items()
    ]


def _kind(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for joint in ("oneOf", "anyOf", "allOf"):
        if joint in schema:
            return " or ".join(_kind(one) for one in schema[joint])
    kind = schema.get("type", "any")
    names = [kind] if isinstance(kind, str) else list(kind)
    if "array" in names:
        return f"list of {_kind(schema.get('items', {}))}"
    if "enum" in schema:
        return " | ".join("null" if one is None else f"“{one}”" for one in schema["enum"])
    return " or ".join(
        f"{name} ({schema['format']})" if "format" in schema and name != "null" else name for name in names
    )
