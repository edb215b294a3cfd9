"""Operations of `training` below /api/v1/."""

from django.urls import URLPattern

from annotation.api.operations import urls_of
from training.api import (
    applications,
    arenas,
    base_models,
    checkpoints,
    conversations,
    prompt_sets,
    rounds,
    rubric_drafts,
    runs,
    side_by_side,
    standings,
    suggestions,
)

urlpatterns: list[URLPattern] = urls_of(
    applications,
    arenas,
    base_models,
    checkpoints,
    conversations,
    conversations,
    applications,
    prompt_sets,
    rounds,
    rubric_drafts,
    runs,
    side_by_side,
    standings,
    suggestions,
)
