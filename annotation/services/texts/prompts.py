"""Prompts that come in one at a time."""

from collections.abc import Sequence
from typing import Any

from django.db import transaction

from annotation.choices import Split
from annotation.models import Project, Prompt
from annotation.services.texts.splits import assign_splits
from annotation.text.identity import content_hash, opening_hash


@transaction.atomic
def find_or_add_prompt(
    *,
    project: Project,
    messages: Sequence[Any],
    context: Sequence[Any] = (),
    references: Sequence[str] = (),
    tags: Sequence[str] = (),
    split: Split | str | None = None,
) -> Prompt:
    """Return the project's prompt with these messages and this context; add it when there is none.

    split: of the new prompt, where it derives from another whose side it must keep.
    """
    digest = content_hash(messages, context)
    # Of two who add one prompt at once the second finds it.
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)
    if prompt := Prompt.objects.filter(project=project, content_hash=digest).first():
        return prompt
    return Prompt.objects.create(
        project=project,
        messages=list(messages),
        context=list(context),
        references=list(references),
        tags=list(tags),
        content_hash=digest,
        split=split
        or assign_splits(project=project, openings={digest: opening_hash(messages, context)})[digest],
    )
