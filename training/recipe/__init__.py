"""Recipe: sampling, training, evaluation and decision of a round in one dataclass, checked when built."""

from training.recipe.parts import (
    POLICY,
    RIVAL,
    BudgetSettings,
    EvaluationSettings,
    PromotionSettings,
    Sampler,
    SamplingSettings,
    StartSettings,
)
from training.recipe.recipe import ROUND_REWARD_MODEL, PolicySettings, Recipe, default_recipe

__all__ = [
    "POLICY",
    "RIVAL",
    "ROUND_REWARD_MODEL",
    "BudgetSettings",
    "EvaluationSettings",
    "PolicySettings",
    "PromotionSettings",
    "Recipe",
    "Sampler",
    "SamplingSettings",
    "StartSettings",
    "default_recipe",
]
