"""Pages of the registry of checkpoints and of drift."""

from django.urls import URLPattern, path

from training.views import checkpoints, drift

_ONE = "checkpoints/<str:name>/"
_DRIFT = "projects/<slug:slug>/drift/"

patterns: list[URLPattern] = [
    path("checkpoints/", checkpoints.checkpoints, name="checkpoints"),
    path(_ONE, checkpoints.checkpoint, name="checkpoint"),
    path(f"{_ONE}describe/", checkpoints.describe, name="checkpoint-describe"),
    path(f"{_ONE}verify/", checkpoints.verify, name="checkpoint-verify"),
    path(f"{_ONE}card/", checkpoints.card, name="checkpoint-card"),
    path(f"{_ONE}export/", checkpoints.export, name="checkpoint-export"),
    path(f"{_ONE}exports/", checkpoints.exports, name="checkpoint-exports"),
    path(f"{_ONE}exports/<int:pk>/", checkpoints.export_download, name="checkpoint-export-download"),
    path(f"{_ONE}delete/", checkpoints.delete, name="checkpoint-delete"),
    path(_DRIFT, drift.drift, name="drift"),
    path(f"{_DRIFT}measure/", drift.measure, name="drift-measure"),
    path(f"{_DRIFT}progress/", drift.progress, name="drift-progress"),
    path(f"{_DRIFT}<str:name>/<int:number>/", drift.items, name="drift-items"),
]
