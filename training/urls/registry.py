"""Pages of the registry of checkpoints and of drift."""

from django.urls import URLPattern, path

from training.views import base_models, checkpoints
from training.views import checkpoints as drift

_ONE = "checkpoints/<str:name>/"
_BASE = "base-models/<str:name>/"
_ADDITIONS = "base-model-additions/"
_DRIFT = "projects/<slug:slug>/drift/"

patterns: list[URLPattern] = [
    path("base-models/", base_models.base_models, name="base-models"),
    path(_BASE, base_models.base_model, name="base-model"),
    path(f"{_BASE}inspect/", base_models.inspect, name="base-model-inspect"),
    path(f"{_BASE}remove/", base_models.remove, name="base-model-remove"),
    path(_ADDITIONS, base_models.additions, name="base-model-additions"),
    path(f"{_ADDITIONS}new/", base_models.add, name="base-model-add"),
    path(f"{_ADDITIONS}<int:pk>/cancel/", base_models.cancel, name="base-model-cancel"),
    path("projects/<slug:slug>/base-model/", base_models.choose, name="project-base-model"),
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
