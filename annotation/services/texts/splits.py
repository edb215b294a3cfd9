"""Sides of the split: which new prompts of a project are held out. Nothing else decides it."""

from collections.abc import Collection

from annotation.choices import Split
from annotation.models import Project, Prompt
from annotation.text.identity import ENOUGH_HELD_OUT, split_new


def assign_splits(*, project: Project, content_hashes: Collection[str]) -> dict[str, Split]:
    """Return the side of each new prompt, by content hash; prompts that are there keep theirs.

    Call it in the transaction that adds the prompts, with the project locked: of two imports at once the
    second counts what the first has added.
    """
    if not content_hashes:
        return {}
    prompts = Prompt.objects.filter(project=project)
    # Counted no further than the quota goes: a large project is not counted for every batch.
    held_out = prompts.filter(split=Split.HELD_OUT)[:ENOUGH_HELD_OUT].count()
    total = prompts.count() if held_out < ENOUGH_HELD_OUT else 0
    return split_new(content_hashes, prompts=total, held_out=held_out)
