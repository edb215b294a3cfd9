"""Pages of rounds, runs and checkpoints."""

from django.urls import URLPattern, path

from training.views import compare, origins, rounds

_ROUND = "projects/<slug:slug>/rounds/<int:number>/"

urlpatterns: list[URLPattern] = [
    path(_ROUND, rounds.round_page, name="round"),
    path(f"{_ROUND}progress/", rounds.progress, name="round-progress"),
    path(f"{_ROUND}start/", rounds.start, name="round-start"),
    path(f"{_ROUND}cancel/", rounds.cancel, name="round-cancel"),
    path(f"{_ROUND}again/", rounds.again, name="round-again"),
    path(f"{_ROUND}reopen/", rounds.reopen, name="round-reopen"),
    path("runs/<int:pk>/", origins.run, name="run"),
    path("checkpoints/", origins.checkpoints, name="checkpoints"),
    path("checkpoints/<str:name>/", origins.checkpoint, name="checkpoint"),
    path("snapshots/<str:digest>/", origins.snapshot, name="snapshot"),
    path("completions/<int:pk>/", origins.completion, name="completion"),
    path("compare/", compare.compare, name="compare"),
    path("compare/answer/", compare.compare_answer, name="compare-answer"),
]
