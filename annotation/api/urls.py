"""URLs of `annotation` below /api/v1/."""

from django.urls import URLPattern

from annotation.api import (
    account,
    audit,
    data,
    inbox,
    labelling,
    members,
    projects,
    quality,
    rubrics,
    suggestions,
    texts,
    transfers,
    webhooks,
)
from annotation.api.operations import urls_of

urlpatterns: list[URLPattern] = urls_of(
    account,
    audit,
    members,
    projects,
    rubrics,
    webhooks,
    inbox,
    texts,
    quality,
    suggestions,
    data,
    transfers,
    labelling,
)
