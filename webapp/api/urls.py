"""URLs below /api/v1/."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import URLPattern, path, re_path
from django.utils import translation
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api import (
    account,
    calibration,
    changes,
    inbox,
    labelling,
    members,
    panels,
    project_file,
    projects,
    quality,
    saved_views,
    sources,
    texts,
    transfers,
    webhooks,
)
from annotation.api.base import ApiView
from annotation.api.operations import urls_of
from training.api import (
    applications,
    arenas,
    base_models,
    checkpoints,
    conversations,
    course,
    embeddings,
    judges,
    leaderboard,
    live,
    prompt_sets,
    providers,
    rounds,
    runs,
    side_by_side,
)
from webapp.operations import api as operations
from webapp.security import api as security

# The OpenAPI document, its documentation page, and 404 for unknown addresses.


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentedOperation:
    """An operation in the documentation."""

    method: str
    path: str
    name: str
    former_name: str
    """The name of the release before; empty where it is the same."""
    description: str
    parameters: list[dict[str, Any]]
    body: str
    """The schema of the body; empty without one."""
    answers: list[tuple[str, str, str]]
    """Status, description, and the schema of the response, empty without a body."""


class SchemaView(ApiView):
    """The OpenAPI document. For everyone."""

    @extend_schema(exclude=True)
    def get(self, request: Request) -> Response:
        """Return the OpenAPI 3.1 document."""
        return Response(document())


class UnknownView(ApiView):
    """Any other address below /api/v1/. For everyone."""

    @extend_schema(exclude=True)
    def get(self, request: Request, rest: str) -> Response:
        """Return 404."""
        raise Http404

    post = put = patch = delete = get


@require_safe
@cache_control(private=True, max_age=300)
def docs(request: HttpRequest) -> HttpResponse:
    """Show the API documentation, operation by operation. For everyone."""
    description = document()
    context = {
        "info": description["info"],
        "groups": _groups(description),
        "schemas": [
            (name, schema.get("description", ""), _fields(schema))
            for name, schema in sorted(description["components"]["schemas"].items())
        ],
    }
    return render(request, "api/docs.html", context)


@lru_cache(maxsize=1)
def document() -> dict[str, Any]:
    """Return the OpenAPI document in English, generated once per process."""
    generator = SchemaGenerator(api_version="v1")  # type: ignore[no-untyped-call]  # untyped there
    # Whoever asks first may read another language; everybody gets this one.
    with translation.override("en"):
        result: dict[str, Any] = generator.get_schema(public=True)  # type: ignore[no-untyped-call]
    return result


def _groups(description: dict[str, Any]) -> list[tuple[str, list[DocumentedOperation]]]:
    groups: dict[str, list[DocumentedOperation]] = {tag["name"]: [] for tag in description["tags"]}
    for address, methods in description["paths"].items():
        for method, operation in methods.items():
            groups[operation["tags"][0]].append(_operation(method, address, operation))
    return list(groups.items())


def _operation(method: str, path: str, operation: dict[str, Any]) -> DocumentedOperation:
    return DocumentedOperation(
        method=method.upper(),
        path=path,
        name=operation["operationId"],
        former_name=operation.get("x-formerly", ""),
        description=operation["description"],
        parameters=[
            {**part, "kind": _kind(part["schema"]), "description": part.get("description", "")}
            for part in operation.get("parameters", [])
        ],
        body=_content(operation.get("requestBody", {})),
        answers=[
            (status, part["description"], _content(part))
            for status, part in sorted(operation["responses"].items())
        ],
    )


def _content(part: dict[str, Any]) -> str:
    kinds = [_kind(media["schema"]) for media in part.get("content", {}).values() if "schema" in media]
    return kinds[0] if kinds else ""


def _fields(schema: dict[str, Any]) -> list[tuple[str, str, bool, str]]:
    """Return name, kind, required flag and description of each field."""
    required = schema.get("required", ())
    return [
        (name, _kind(field), name in required, field.get("description", ""))
        for name, field in schema.get("properties", {}).items()
    ]


def _kind(schema: dict[str, Any]) -> str:
    """Return a short text for a schema."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for joint in ("oneOf", "anyOf", "allOf"):
        if joint in schema:
            return " or ".join(_kind(part) for part in schema[joint])
    kind = schema.get("type", "any")
    names = [kind] if isinstance(kind, str) else list(kind)
    if "array" in names:
        return f"list of {_kind(schema.get('items', {}))}"
    if "enum" in schema:
        return " | ".join("null" if choice is None else f"“{choice}”" for choice in schema["enum"])
    return " or ".join(
        f"{name} ({schema['format']})" if "format" in schema and name != "null" else name for name in names
    )


# ── Urls ──

urlpatterns: list[URLPattern] = [
    *urls_of(
        account,
        projects,
        project_file,
        texts,
        inbox,
        labelling,
        members,
        panels,
        quality,
        calibration,
        sources,
        transfers,
        saved_views,
        changes,
        webhooks,
        applications,
        arenas,
        base_models,
        checkpoints,
        conversations,
        course,
        prompt_sets,
        providers,
        rounds,
        live,
        judges,
        embeddings,
        runs,
        side_by_side,
        leaderboard,
        operations,
        security,
    ),
    path("openapi.json", SchemaView.as_view(), name="api-schema"),
    path("docs/", docs, name="api-docs"),
    # A regular expression, because `path` does not match line ends.
    re_path(r"^(?P<rest>[\s\S]*)$", UnknownView.as_view(), name="api-unknown"),
]
