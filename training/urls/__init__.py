"""Pages of rounds, runs and checkpoints."""

from django.urls import URLPattern, path

from training.services.rounds.actions import ACTIONS
from training.urls.comparing import patterns as comparing
from training.urls.conversations import patterns as conversations
from training.urls.feedback import patterns as feedback
from training.urls.registry import patterns as registry
from training.views import checkpoints, dashboard, judges, openai, rounds, runs, snapshots
from training.views import judges as rubric_drafts
from training.views import judges as suggestions
from training.views import rounds as recipe
from training.views import runs as run_table

_ROUND = "projects/<slug:slug>/rounds/<int:number>/"

urlpatterns: list[URLPattern] = [
    path("projects/<slug:slug>/dashboard/", dashboard.dashboard, name="dashboard"),
    path("projects/<slug:slug>/dashboard/quality/", dashboard.quality, name="dashboard-quality"),
    path("projects/<slug:slug>/rounds/", rounds.rounds, name="rounds"),
    path("projects/<slug:slug>/rounds/new/", rounds.draft, name="round-draft"),
    path(_ROUND, rounds.round_page, name="round"),
    path(f"{_ROUND}progress/", rounds.progress, name="round-progress"),
    path(f"{_ROUND}recipe/", recipe.recipe, name="round-recipe"),
    *(path(f"{_ROUND}{name}/", rounds.act, {"action": name}, name=f"round-{name}") for name in ACTIONS),
    path("projects/<slug:slug>/runs/", run_table.runs, name="runs"),
    path("projects/<slug:slug>/runs/compare/", run_table.compare, name="runs-compare"),
    path("runs/<int:pk>/", runs.run, name="run"),
    path("runs/<int:pk>/live/", runs.live, name="run-live"),
    path("runs/<int:pk>/log/", runs.log, name="run-log"),
    path("runs/<int:pk>/describe/", runs.describe, name="run-describe"),
    path("runs/<int:pk>/curves/", runs.curves, name="run-curves"),
    path("runs/<int:pk>/download/", runs.download, name="run-download"),
    path("runs/<int:pk>/tensorboard/", runs.tensorboard, name="run-tensorboard"),
    path("checkpoints/<str:name>/evaluation/", checkpoints.evaluation, name="evaluation"),
    path("checkpoints/<str:name>/evaluation/file/", checkpoints.evaluation_file, name="evaluation-file"),
    path("snapshots/<str:digest>/", snapshots.snapshot, name="snapshot"),
    path("completions/<int:pk>/", snapshots.completion, name="completion"),
    path("projects/<slug:slug>/judges/", judges.judges, name="judges"),
    path("projects/<slug:slug>/judges/<int:pk>/", judges.judge, name="judge"),
    path("projects/<slug:slug>/judges/<int:pk>/set/", judges.judge_set, name="judge-set"),
    path("projects/<slug:slug>/rubric-drafts/", rubric_drafts.drafts, name="rubric-drafts"),
    path("projects/<slug:slug>/rubric-drafts/<int:pk>/", rubric_drafts.draft, name="rubric-draft"),
    path("projects/<slug:slug>/suggestions/", suggestions.suggestions, name="suggestions"),
    path("served-models/new/", judges.served_model, name="served-model"),
    path("v1/models", openai.models, name="v1-models"),
    path("v1/models/<str:name>", openai.model, name="v1-model"),
    path("v1/chat/completions", openai.chat_completions, name="v1-chat-completions"),
    path("v1/completions", openai.completions, name="v1-completions"),
    path("v1/<path:rest>", openai.unknown, name="v1-unknown"),
    *comparing,
    *conversations,
    *feedback,
    *registry,
]
