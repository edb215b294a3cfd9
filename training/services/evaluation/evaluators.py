"""Rounds that train a second reward model, by which alone the new policy is evaluated."""

from collections import Counter

from training.contract import part_of_prompt
from training.models import Round
from training.selectors.judgments import decided_judgments

ENOUGH_JUDGMENTS = 200
"""Decided training judgments from which on `auto` trains an evaluator: a hundred for each of both."""


def trains_evaluator(round_: Round) -> bool:
    """Return whether a round that starts now trains an evaluator, by its recipe and its judgments.

    Never where one part of the prompts has no decided judgment: its model could learn nothing.
    """
    setting = round_.parsed_recipe.evaluation.evaluator
    if setting == "same":
        return False
    recipe = round_.parsed_recipe
    judgments = decided_judgments(
        round_.project,
        range(1, round_.number + 1),
        ai_feedback=recipe.ai_feedback,
        first_passes=recipe.first_passes,
    )
    prompts = judgments.prefetch_related(None).values_list("comparison__prompt_id", flat=True)
    parts = Counter(part_of_prompt(str(prompt)) for prompt in prompts)
    return len(parts) == 2 and (setting == "second" or parts.total() >= ENOUGH_JUDGMENTS)
