"""URLs of `annotation` below /api/v1/."""

from django.urls import URLPattern, path

from annotation.api import (
    account,
    audit,
    continuing,
    data,
    inbox,
    invitations,
    labelling,
    members,
    projects,
    quality,
    questions,
    reviews,
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
        invitations,
        members,
        projects,
        questions,
        rubrics,
        webhooks,
        inbox,
        texts,
        quality,
        reviews,
        suggestions,
        data,
    ),
    path(f"{_PROJECT}assignments/", labelling.AssignmentsView.as_view(), name="api-assignments"),
    path(f"{_PROJECT}assignments/next/", labelling.NextView.as_view(), name="api-next"),
    path(_ONE, labelling.AssignmentView.as_view(), name="api-assignment"),
    path(f"{_ONE}judgment/", labelling.JudgmentView.as_view(), name="api-judgment"),
    path(f"{_ONE}draft/", labelling.DraftView.as_view(), name="api-draft"),
    path(f"{_ONE}continuation/", continuing.ContinuationView.as_view(), name="api-continuation"),
    path(f"{_ONE}skip/", labelling.SkipView.as_view(), name="api-skip"),
    path(f"{_ONE}flag/", labelling.FlagView.as_view(), name="api-flag"),
    path(f"{_ONE}renew/", labelling.RenewView.as_view(), name="api-renew"),
    path(f"{_ONE}release/", labelling.ReleaseView.as_view(), name="api-release"),
    path("formats/", transfers.FormatsView.as_view(), name="api-formats"),
    path(f"{_PROJECT}imports/", transfers.ImportsView.as_view(), name="api-imports"),
    path(f"{_PROJECT}imports/<int:pk>/", transfers.ImportView.as_view(), name="api-import"),
    path(f"{_PROJECT}imports/<int:pk>/preview/", transfers.PreviewView.as_view(), name="api-import-preview"),
    path(f"{_PROJECT}imports/<int:pk>/start/", transfers.StartView.as_view(), name="api-import-start"),
    path(f"{_PROJECT}imports/<int:pk>/undo/", transfers.UndoView.as_view(), name="api-import-undo"),
    path(f"{_PROJECT}exports/<slug:format_name>/", transfers.ExportView.as_view(), name="api-export"),
    path(
        f"{_PROJECT}exports/<slug:format_name>/manifest/",
        transfers.ManifestView.as_view(),
        name="api-export-manifest",
    ),
    path(
        f"{_PROJECT}exports/<slug:format_name>/dropped/",
        transfers.DroppedView.as_view(),
        name="api-export-dropped",
    ),
]
