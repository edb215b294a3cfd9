"""Reads of prompt sets, and the search for prompts to ask."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count, QuerySet

from annotation.models import Project, Prompt
from annotation.selectors.tables.search import matching
from training.models import Checkpoint, PromptSet, SideBySide

_LONGEST_SEARCH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSetProgress:
    """Prompts of a set that were voted on for some checkpoints, and the next one."""

    voted: int
    total: int
    next: Prompt | None
    """None as soon as all were voted on, and for an empty set."""


def prompt_sets_of(project: Project) -> QuerySet[PromptSet]:
    """Return the prompt sets of a project with their `size`, by name."""
    return project.prompt_sets.annotate(size=Count("prompts")).select_related("project").order_by("name")


def prompts_matching(project: Project, text: str, *, split: str = "", tag: str = "") -> QuerySet[Prompt]:
    """Return the prompts of a project with all words of a text, newest first."""
    prompts, _far = matching(project.prompts.order_by("-pk"), text[:_LONGEST_SEARCH], column="messages")
    if split:
        prompts = prompts.filter(split=split)
    return prompts


def progress_on(
    prompt_set: PromptSet, checkpoints: Sequence[Checkpoint], *, after: int | None = None
) -> PromptSetProgress:
    """Return the progress of comparing exactly these checkpoints on a set, whoever voted.

    after: id of the prompt that the next one follows; behind the last one the first follows.
    """
    prompts = prompt_set.prompts.order_by("pk")
    voted = _voted(prompt_set, checkpoints)
    left = prompts.exclude(pk__in=voted)
    return PromptSetProgress(
        voted=prompts.filter(pk__in=voted).count(),
        total=prompts.count(),
        next=left.filter(pk__gt=after or 0).first() or left.exclude(pk=after or 0).first(),
    )


def _voted(prompt_set: PromptSet, checkpoints: Sequence[Checkpoint]) -> set[int]:
    """Return the ids of prompts on which these checkpoints, and no others, were voted on within the set."""
    checkpoint_ids = {checkpoint.pk for checkpoint in checkpoints}
    side_by_sides = SideBySide.objects.filter(
        prompt_set=prompt_set, judgment__isnull=False, continues__isnull=True
    ).annotate(answered=Count("answers", distinct=True))
    side_by_sides = side_by_sides.filter(answered=len(checkpoint_ids))
    for pk in checkpoint_ids:
        side_by_sides = side_by_sides.filter(answers__checkpoint=pk)
    return set(side_by_sides.values_list("base_prompt", flat=True)) - {None}
