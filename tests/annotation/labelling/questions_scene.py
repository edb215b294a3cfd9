"""Requests and responses of the labelling page, as a page without JavaScript sends them."""

import uuid
from collections.abc import Callable
from typing import Any

from django.test import Client
from django.urls import reverse

from annotation.models import Assignment, Project, User
from annotation.services.assignments.display_order import tokens_of

ClientOf = Callable[[User], Client]
HTMX = {"HX-Request": "true"}
CRLF = "First line.\r\nSecond  line.\n\nThird line."


def address(name: str, assignment: Assignment) -> str:
    return reverse(name, args=[assignment.comparison.project.slug, assignment.pk])


def token_of(assignment: Assignment, text: str) -> str:
    completion = assignment.comparison.completions.get(text=text)
    return next(token for token, pk in tokens_of(assignment).items() if pk == completion.pk)


def send(client: Client, assignment: Assignment, **fields: Any) -> Any:
    data = {"idempotency_key": str(uuid.uuid4()), "guideline": "1", "choice": "equal", **fields}
    return client.post(address("submit", assignment), data, headers=HTMX)


def ratings(assignment: Assignment, helpful: str = "4", tone: str = "1") -> dict[str, str]:
    return {
        f"rating-{token}-{key}": value
        for token in tokens_of(assignment)
        for key, value in (("helpful", helpful), ("tone", tone))
    }


def shown(response: Any) -> str:
    return str(response.content.decode())


def label(client: Client, project: Project) -> str:
    return shown(client.get(reverse("label", args=[project.slug])))
