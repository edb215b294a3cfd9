"""Operations of `training` below /api/v1/."""

from django.urls import URLPattern, path

from training.api import (
    applications,
    arenas,
    base_models,
    checkpoints,
    conversation_settings,
    conversations,
    downloads,
    feedback,
    prompt_sets,
    rounds,
    rubric_drafts,
    runs,
    side_by_side,
    standings,
    suggestions,
)

_PROJECT = "projects/<slug:slug>/"
_ROUND = f"{_PROJECT}rounds/<int:number>/"
_RUN = "runs/<int:pk>/"
_CHECKPOINT = "checkpoints/<str:name>/"
_FEEDBACK = f"{_PROJECT}feedback/"
_ARENA = "arenas/<slug:arena>/"
_TALK = f"{_PROJECT}conversations/<uuid:pk>/"
_BESIDE = f"{_PROJECT}beside/<slug:page>/"

urlpatterns: list[URLPattern] = [
    path(f"{_PROJECT}rounds/", rounds.RoundsView.as_view(), name="api-rounds"),
    path(_ROUND, rounds.RoundView.as_view(), name="api-round"),
    path(f"{_ROUND}recipe/", rounds.RecipeView.as_view(), name="api-recipe"),
    path(f"{_ROUND}dry-run/", rounds.DryRunView.as_view(), name="api-dry-run"),
    path(f"{_ROUND}<slug:action>/", rounds.RoundActionView.as_view(), name="api-round-action"),
    path(f"{_PROJECT}runs/", runs.RunsView.as_view(), name="api-runs"),
    path(_RUN, runs.RunView.as_view(), name="api-run"),
    path(f"{_RUN}metrics/", runs.MetricsView.as_view(), name="api-metrics"),
    path(f"{_RUN}log/", runs.LogView.as_view(), name="api-log"),
    path(f"{_RUN}archive/", downloads.ArchiveView.as_view(), name="api-run-archive"),
    path(f"{_RUN}events/", downloads.EventsView.as_view(), name="api-run-events"),
    path(f"{_RUN}samples/", runs.SamplesView.as_view(), name="api-samples"),
    path(f"{_PROJECT}snapshots/", runs.SnapshotsView.as_view(), name="api-snapshots"),
    path(
        "snapshots/<slug:digest>/judgments/",
        runs.SnapshotJudgmentsView.as_view(),
        name="api-snapshot-judgments",
    ),
    path("base-models/", base_models.BaseModelsView.as_view(), name="api-base-models"),
    path("base-models/<str:name>/", base_models.BaseModelView.as_view(), name="api-base-model"),
    path(
        "base-models/<str:name>/inspection/",
        base_models.InspectionView.as_view(),
        name="api-base-model-inspection",
    ),
    path("base-model-additions/", base_models.AdditionsView.as_view(), name="api-base-model-additions"),
    path(
        "base-model-additions/<int:pk>/", base_models.AdditionView.as_view(), name="api-base-model-addition"
    ),
    path("hub-models/", base_models.HubModelView.as_view(), name="api-hub-model"),
    path(f"{_PROJECT}base-model/", base_models.ProjectBaseView.as_view(), name="api-project-base-model"),
    path("checkpoints/", checkpoints.CheckpointsView.as_view(), name="api-checkpoints"),
    path(_CHECKPOINT, checkpoints.CheckpointView.as_view(), name="api-checkpoint"),
    path(f"{_CHECKPOINT}card/", checkpoints.CardView.as_view(), name="api-card"),
    path(f"{_CHECKPOINT}verification/", checkpoints.VerificationView.as_view(), name="api-verification"),
    path(f"{_CHECKPOINT}evaluation/", downloads.EvaluationView.as_view(), name="api-evaluation"),
    path(
        f"{_CHECKPOINT}exports/<int:pk>/archive/",
        downloads.ExportArchiveView.as_view(),
        name="api-export-archive",
    ),
    path(f"{_CHECKPOINT}exports/", checkpoints.ExportsView.as_view(), name="api-exports"),
    path(f"{_PROJECT}arenas/", arenas.ArenasView.as_view(), name="api-arenas"),
    path(f"{_PROJECT}arenas/<int:pk>/close/", arenas.CloseView.as_view(), name="api-arena-close"),
    path(f"{_ARENA}ballots/next/", arenas.NextBallotView.as_view(), name="api-ballot-next"),
    path(f"{_ARENA}ballots/<uuid:ballot>/", arenas.BallotView.as_view(), name="api-ballot"),
    path(f"{_ARENA}ballots/<uuid:ballot>/vote/", arenas.VoteView.as_view(), name="api-ballot-vote"),
    path(f"{_PROJECT}conversations/", conversations.ConversationsView.as_view(), name="api-conversations"),
    path(_TALK, conversations.ConversationView.as_view(), name="api-conversation"),
    path(f"{_TALK}messages/", conversations.MessagesView.as_view(), name="api-conversation-messages"),
    path(f"{_TALK}responses/", conversations.ResponsesView.as_view(), name="api-conversation-responses"),
    path(f"{_TALK}end/", conversations.EndView.as_view(), name="api-conversation-end"),
    path(
        f"{_PROJECT}conversation-settings/",
        conversation_settings.ConversationSettingsView.as_view(),
        name="api-conversation-settings",
    ),
    path(
        f"{_PROJECT}conversation-tasks/",
        conversation_settings.ConversationTasksView.as_view(),
        name="api-conversation-tasks",
    ),
    path(
        f"{_PROJECT}conversation-tasks/<int:pk>/",
        conversation_settings.ConversationTaskView.as_view(),
        name="api-conversation-task",
    ),
    path(f"{_PROJECT}beside/", side_by_side.BesidesView.as_view(), name="api-besides"),
    path(_BESIDE, side_by_side.BesideView.as_view(), name="api-beside"),
    path(f"{_BESIDE}write/", side_by_side.WriteView.as_view(), name="api-beside-write"),
    path(f"{_BESIDE}vote/", side_by_side.BesideVoteView.as_view(), name="api-beside-vote"),
    path(f"{_BESIDE}reveal/", side_by_side.RevealView.as_view(), name="api-beside-reveal"),
    path(f"{_BESIDE}continue/", side_by_side.ContinueView.as_view(), name="api-beside-continue"),
    path(f"{_BESIDE}regenerate/", side_by_side.AgainView.as_view(), name="api-beside-regenerate"),
    path(f"{_BESIDE}next/", side_by_side.NextView.as_view(), name="api-beside-next"),
    *prompt_sets.prompt_sets.urls,
    path(f"{_PROJECT}leaderboard/", standings.LeaderboardView.as_view(), name="api-leaderboard"),
    path(f"{_PROJECT}drift/", standings.DriftView.as_view(), name="api-drift"),
    path(
        f"{_PROJECT}drift/<str:name>/rounds/<int:number>/",
        standings.DriftItemsView.as_view(),
        name="api-drift-items",
    ),
    path(
        f"{_PROJECT}application-requests/",
        applications.RequestsView.as_view(),
        name="api-application-requests",
    ),
    path(
        f"{_PROJECT}application-requests/<int:pk>/",
        applications.RequestView.as_view(),
        name="api-application-request",
    ),
    path(f"{_FEEDBACK}", applications.FeedbackListView.as_view(), name="api-feedback-list"),
    path(f"{_FEEDBACK}figures/", applications.FiguresView.as_view(), name="api-feedback-figures"),
    path(f"{_FEEDBACK}incidents/", applications.IncidentsView.as_view(), name="api-feedback-incidents"),
    path(
        f"{_FEEDBACK}incidents/<int:pk>/", applications.IncidentView.as_view(), name="api-feedback-incident"
    ),
    path(f"{_FEEDBACK}settings/", applications.SettingsView.as_view(), name="api-feedback-settings"),
    path(f"{_FEEDBACK}patterns/", applications.PatternsView.as_view(), name="api-feedback-patterns"),
    path(f"{_FEEDBACK}rules/", applications.RuleView.as_view(), name="api-feedback-rules"),
    path(f"{_FEEDBACK}stored-tokens/", applications.TokensView.as_view(), name="api-feedback-tokens"),
    path(
        f"{_FEEDBACK}stored-tokens/<int:pk>/",
        applications.StoredTokenView.as_view(),
        name="api-feedback-token",
    ),
    path(f"{_FEEDBACK}keys/", applications.FeedbackKeysView.as_view(), name="api-feedback-keys"),
    path(f"{_FEEDBACK}keys/<int:pk>/", applications.FeedbackKeyView.as_view(), name="api-feedback-key"),
    path(f"{_FEEDBACK}erasure/", applications.ErasureView.as_view(), name="api-feedback-erasure"),
    path("feedback/", feedback.GiveFeedbackView.as_view(), name="api-feedback"),
    path(f"{_PROJECT}judges/", standings.JudgesView.as_view(), name="api-judges"),
    path(f"{_PROJECT}judges/<int:pk>/", standings.JudgeView.as_view(), name="api-judge"),
    path(
        f"{_PROJECT}judges/<int:pk>/criteria/",
        standings.JudgeCriteriaView.as_view(),
        name="api-judge-criteria",
    ),
    path(f"{_PROJECT}rubric-drafts/", rubric_drafts.RubricDraftsView.as_view(), name="api-rubric-drafts"),
    path(
        f"{_PROJECT}rubric-drafts/<int:pk>/",
        rubric_drafts.RubricDraftView.as_view(),
        name="api-rubric-draft",
    ),
    path(f"{_PROJECT}suggestions/", suggestions.SuggestionsView.as_view(), name="api-suggestions"),
    path(
        f"{_PROJECT}suggestions/effect/", suggestions.HelpReportView.as_view(), name="api-suggestions-effect"
    ),
]
