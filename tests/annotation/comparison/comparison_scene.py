"""The page of one comparison by request."""

from collections.abc import Callable

from django.test import Client
from django.urls import reverse

from annotation.models import Comparison, User

ClientOf = Callable[[User], Client]


def page_of(client: Client, comparison: Comparison, **query: str | int):
    answer = client.get(reverse("statistics-item", args=[comparison.project.slug, comparison.pk]), query)
    assert answer.status_code == 200
    return answer
