"""Operations of `training` below /api/v1/."""

from django.urls import URLPattern, path

from training.api import arenas, beside, checkpoints, downloads, prompt_sets, rounds, runs, standings

_PROJECT = "projects/<slug:slug>/"
_ROUND = f"{_PROJECT}rounds/<int:number>/"
_RUN = "runs/<int:pk>/"
_CHECKPOINT = "checkpoints/<str:name>/"
_ARENA = "arenas/<slug:arena>/"
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
    path(f"{_PROJECT}beside/", beside.BesidesView.as_view(), name="api-besides"),
    path(_BESIDE, beside.BesideView.as_view(), name="api-beside"),
    path(f"{_BESIDE}write/", beside.WriteView.as_view(), name="api-beside-write"),
    path(f"{_BESIDE}vote/", beside.BesideVoteView.as_view(), name="api-beside-vote"),
    path(f"{_BESIDE}reveal/", beside.RevealView.as_view(), name="api-beside-reveal"),
    path(f"{_BESIDE}continue/", beside.ContinueView.as_view(), name="api-beside-continue"),
    path(f"{_BESIDE}regenerate/", beside.AgainView.as_view(), name="api-beside-regenerate"),
    path(f"{_BESIDE}next/", beside.NextView.as_view(), name="api-beside-next"),
    path(f"{_PROJECT}prompt-sets/", prompt_sets.PromptSetsView.as_view(), name="api-prompt-sets"),
    path(f"{_PROJECT}prompt-sets/<int:pk>/", prompt_sets.PromptSetView.as_view(), name="api-prompt-set"),
    path(f"{_PROJECT}leaderboard/", standings.LeaderboardView.as_view(), name="api-leaderboard"),
    path(f"{_PROJECT}drift/", standings.DriftView.as_view(), name="api-drift"),
    path(
        f"{_PROJECT}drift/<str:name>/rounds/<int:number>/",
        standings.DriftItemsView.as_view(),
        name="api-drift-items",
    ),
    path(f"{_PROJECT}judges/", standings.JudgesView.as_view(), name="api-judges"),
    path(f"{_PROJECT}judges/<int:pk>/", standings.JudgeView.as_view(), name="api-judge"),
]
