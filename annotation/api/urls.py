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
    *urls_of(account, audit, invitations, members, projects, questions, rubrics, webhooks),
    path("me/mail/", inbox.MailChoiceView.as_view(), name="api-me-mail"),
    path("inbox/", inbox.InboxView.as_view(), name="api-inbox"),
    path(f"{_PROJECT}prompts/", texts.PromptsView.as_view(), name="api-prompts"),
    path(f"{_PROJECT}prompts/<int:pk>/", texts.PromptView.as_view(), name="api-prompt"),
    path(f"{_PROJECT}completions/", texts.CompletionsView.as_view(), name="api-completions"),
    path(f"{_PROJECT}comparisons/", texts.ComparisonsView.as_view(), name="api-comparisons"),
    path(f"{_PROJECT}comparisons/<int:pk>/", texts.ComparisonView.as_view(), name="api-comparison"),
    path(f"{_PROJECT}comments/<int:pk>/", inbox.CommentView.as_view(), name="api-comment"),
    path(f"{_PROJECT}comparisons/<int:pk>/comments/", inbox.CommentsView.as_view(), name="api-comments"),
    path(
        f"{_PROJECT}comparisons/<int:pk>/comments/resolve/",
        inbox.ResolveView.as_view(),
        name="api-comments-resolve",
    ),
    path(
        f"{_PROJECT}comparisons/<int:pk>/judgments/",
        texts.ComparisonJudgmentsView.as_view(),
        name="api-comparison-judgments",
    ),
    path(f"{_PROJECT}judgments/", texts.JudgmentsView.as_view(), name="api-judgments"),
    path(f"{_PROJECT}assignments/", labelling.AssignmentsView.as_view(), name="api-assignments"),
    path(f"{_PROJECT}assignments/next/", labelling.NextView.as_view(), name="api-next"),
    path(_ONE, labelling.AssignmentView.as_view(), name="api-assignment"),
    path(f"{_ONE}judgment/", labelling.JudgmentView.as_view(), name="api-judgment"),
    path(f"{_ONE}draft/", labelling.DraftView.as_view(), name="api-draft"),
    path(f"{_ONE}continuation/", continuing.ContinuationView.as_view(), name="api-continuation"),
    path(f"{_ONE}suggestions/", suggestions.FinalPassView.as_view(), name="api-assignment-suggestions"),
    path(f"{_ONE}skip/", labelling.SkipView.as_view(), name="api-skip"),
    path(f"{_ONE}flag/", labelling.FlagView.as_view(), name="api-flag"),
    path(f"{_ONE}comments/", inbox.OwnCommentsView.as_view(), name="api-assignment-comments"),
    path(f"{_ONE}renew/", labelling.RenewView.as_view(), name="api-renew"),
    path(f"{_ONE}release/", labelling.ReleaseView.as_view(), name="api-release"),
    path(f"{_PROJECT}reviews/", reviews.ReviewsView.as_view(), name="api-reviews"),
    path(f"{_PROJECT}reviews/<int:pk>/", reviews.ReviewView.as_view(), name="api-review"),
    path(f"{_PROJECT}reviews/<int:pk>/decision/", reviews.DecisionView.as_view(), name="api-review-decision"),
    path(f"{_PROJECT}statistics/", quality.StatisticsView.as_view(), name="api-statistics"),
    path(f"{_PROJECT}statistics/items/", quality.StatisticsItemsView.as_view(), name="api-statistics-items"),
    path(f"{_PROJECT}comparisons/act/", data.ComparisonsActionView.as_view(), name="api-comparisons-act"),
    path(f"{_PROJECT}prompts/act/", data.PromptsActionView.as_view(), name="api-prompts-act"),
    path(f"{_PROJECT}withheld/", quality.WithheldView.as_view(), name="api-withheld"),
    path(
        f"{_PROJECT}withheld/<int:pk>/decision/",
        quality.WithheldDecisionView.as_view(),
        name="api-withheld-decision",
    ),
    path(f"{_PROJECT}gold/", quality.GoldView.as_view(), name="api-gold"),
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
