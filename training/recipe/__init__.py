"""Recipe: sampling, training, evaluation and decision of a round in one dataclass, checked when built."""

from training.recipe.recipe import (
    POLICY,
    RIVAL,
    ROUND_REWARD_MODEL,
    BudgetSettings,
    EvaluationSettings,
    PolicySettings,
    PromotionSettings,
    Recipe,
    Sampler,
    SamplingSettings,
    StartSettings,
    default_recipe,
)

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
