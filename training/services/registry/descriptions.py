"""Tags and notes of checkpoints and runs."""

import re
from collections.abc import Sequence

from django.db import transaction
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.models import Project, User
from annotation.services import audit
from training.models import Checkpoint, Run

MOST_TAGS = 20
LONGEST_NOTE = 20_000
TAG = re.compile(r"[\w][\w .:+-]{0,39}")


def describe_checkpoint(
    *, checkpoint: Checkpoint, tags: Sequence[str], notes: str, described_by: User
) -> None:
    """Give a checkpoint other tags and notes. Refuses what is no tag, and too much of either.

    Nothing is written where nothing changed.
    """
    _describe(checkpoint, tags=tags, notes=notes, user=described_by, project=checkpoint.project)


def describe_run(*, run: Run, tags: Sequence[str], notes: str, described_by: User) -> None:
    """Give a run other tags and notes. Refuses what is no tag, and too much of either.

    Nothing is written where nothing changed.
    """
    _describe(run, tags=tags, notes=notes, user=described_by, project=run.snapshot.project)


def _describe(
    row: Checkpoint | Run, *, tags: Sequence[str], notes: str, user: User, project: Project | None
) -> None:
    unique_tags = list(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
    _require_tags(unique_tags)
    if len(notes) > LONGEST_NOTE:
        raise Refusal(
            "notes_too_long",
            _("Notes have at most %(most)d characters; these have %(count)d."),
            field="notes",
            most=LONGEST_NOTE,
            count=len(notes),
        )
    if "\0" in notes:
        raise Refusal("text_holds_nul", _("Notes contain a NUL character. Remove it."), field="notes")
    kind = row._meta.model_name
    with transaction.atomic():
        held = type(row)._default_manager.select_for_update(of=("self",)).get(pk=row.pk)
        if held.tags != unique_tags:
            details = {"before": held.tags, "after": unique_tags}
            audit.record(action=f"{kind}.tag", subject=held, actor=user, project=project, details=details)
        if held.notes != notes:
            audit.record(action=f"{kind}.note", subject=held, actor=user, project=project)
        type(row)._default_manager.filter(pk=held.pk).update(tags=unique_tags, notes=notes)
    row.tags, row.notes = unique_tags, notes


def _require_tags(tags: Sequence[str]) -> None:
    for tag in tags:
        if not TAG.fullmatch(tag):
            raise Refusal(
                "invalid_tag",
                _("%(tag)s is no tag: use up to 40 letters, digits, spaces, dots, colons and dashes."),
                field="tags",
                tag=repr(tag[:60]),
            )
    if len(tags) > MOST_TAGS:
        raise Refusal("too_many_tags", _("Use at most %(most)d tags."), field="tags", most=MOST_TAGS)
