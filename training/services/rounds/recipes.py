"""A round's recipe is changed, as long as it may be."""

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.models import User
from annotation.services import audit
from training.choices import CAN_START, RoundState
from training.models import Round
from training.recipe import Recipe
from training.services.rounds.reward_models import served_groups

CAN_CHANGE = (RoundState.DRAFT, *CAN_START)
"""States in which a recipe may change: what a round trained with is part of its record."""


def change_recipe(*, round_: Round, recipe: Recipe, actor: User) -> list[str]:
    """Give a round another recipe and return the paths of what changed; none leaves all as it was.

    What concerns answers holds for those that are not asked for yet. Written to the audit log. Refuses
    once training has begun, and a reward of groups that the model server would have to score by.
    """
    with transaction.atomic():
        locked = Round.objects.select_for_update().get(pk=round_.pk)
        if locked.state not in CAN_CHANGE:
            raise Refusal(
                "recipe_fixed",
                _(
                    "%(round)s is %(state)s: its recipe cannot change any more. Change that of "
                    "the next round."
                ),
                round=round_,
                state=locked.get_state_display(),
            )
        for problem in served_groups(locked, recipe.policy):
            raise Refusal("recipe_invalid", problem, field="recipe")
        before, after = locked.parsed_recipe.to_json(), recipe.to_json()
        if locked.names_trl:
            before["trainer"] = "trl"
        changed = sorted(_differences(before, after))
        if changed:
            Round.objects.filter(pk=round_.pk).update(recipe=after)
            audit.record(
                action="round.recipe",
                subject=round_,
                actor=actor,
                project=round_.project,
                details={"changed": changed},
            )
    round_.refresh_from_db()
    return changed


def _differences(before: Any, after: Any, path: str = "") -> list[str]:
    if isinstance(before, Mapping) and isinstance(after, Mapping) and before and after:
        return [
            difference
            for name in sorted({*before, *after})
            for difference in _differences(
                before.get(name), after.get(name), f"{path}.{name}" if path else name
            )
        ]
    # What was decoded from JSON has lists where a recipe has tuples.
    same = _plain(before) == _plain(after)
    return [] if same else [path]


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return value
