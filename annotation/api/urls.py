"""URLs of `annotation` below /api/v1/."""

from django.urls import URLPattern, path

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

_PROJECT = "projects/<slug:slug>/"
_ONE = f"{_PROJECT}assignments/<int:pk>/"

urlpatterns: list[URLPattern] = [
    *urls_of(
        account,
        audit,
        members,
        members,
        projects,
        projects,
        rubrics,
        webhooks,
        inbox,
        texts,
        quality,
        quality,
        suggestions,
        data,
        transfers,
    ),
    path(f"{_PROJECT}assignments/", labelling.AssignmentsView.as_view(), name="api-assignments"),
    path(f"{_PROJECT}assignments/next/", labelling.NextView.as_view(), name="api-next"),
    path(_ONE, labelling.AssignmentView.as_view(), name="api-assignment"),
    path(f"{_ONE}judgment/", labelling.JudgmentView.as_view(), name="api-judgment"),
    path(f"{_ONE}draft/", labelling.DraftView.as_view(), name="api-draft"),
    path(f"{_ONE}continuation/", labelling.ContinuationView.as_view(), name="api-continuation"),
    path(f"{_ONE}skip/", labelling.SkipView.as_view(), name="api-skip"),
    path(f"{_ONE}flag/", labelling.FlagView.as_view(), name="api-flag"),
    path(f"{_ONE}renew/", labelling.RenewView.as_view(), name="api-renew"),
    path(f"{_ONE}release/", labelling.ReleaseView.as_view(), name="api-release"),
]
