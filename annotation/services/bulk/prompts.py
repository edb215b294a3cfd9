"""Tags of chosen prompts. With `dry_run` the effect is returned and nothing changes."""

import re
from collections.abc import Sequence

from django.db import transaction
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from annotation.errors import Refusal
from annotation.models import Project, Prompt, User, bulk
from annotation.models.bulk import json_value
from annotation.services import audit
from annotation.services.bulk.effect import Effect, check

LONGEST_TAG = 40
TAG = r"\w[\w .:+-]{0,39}"
"""Form of a tag: letters, digits, spaces, dots, colons, plus signs and dashes, as for tags of runs."""
MOST_TAGS = 20


@transaction.atomic
def add_tag(
    *, project: Project, actor: User, chosen: Sequence[int], value: str, dry_run: bool = False
) -> Effect:
    """Add a tag to each chosen prompt. Refuses an empty tag, one of more than 40 characters, and a comma."""
    tag = _tag(value)
    prompts = _locked(project, actor, chosen)
    tagged = [prompt for prompt in prompts if tag in prompt.tags]
    full = [prompt for prompt in prompts if tag not in prompt.tags and len(prompt.tags) >= MOST_TAGS]
    changed = [prompt for prompt in prompts if tag not in prompt.tags and len(prompt.tags) < MOST_TAGS]
    if not dry_run:
        _store(changed, [[*prompt.tags, tag] for prompt in changed])
        _note(project, actor, "data.tag", tag, len(changed))
    skipped = {gettext_lazy("has the tag already"): len(tagged), gettext_lazy("has 20 tags"): len(full)}
    return Effect(changed=len(changed), skipped={why: number for why, number in skipped.items() if number})


@transaction.atomic
def remove_tag(
    *, project: Project, actor: User, chosen: Sequence[int], value: str, dry_run: bool = False
) -> Effect:
    """Remove a tag from each chosen prompt."""
    tag = _tag(value)
    prompts = _locked(project, actor, chosen)
    changed = [prompt for prompt in prompts if tag in prompt.tags]
    if not dry_run:
        _store(
            changed, [[prompt_tag for prompt_tag in prompt.tags if prompt_tag != tag] for prompt in changed]
        )
        _note(project, actor, "data.untag", tag, len(changed))
    others = len(prompts) - len(changed)
    return Effect(changed=len(changed), skipped={gettext_lazy("lacks the tag"): others} if others else {})


def _locked(project: Project, actor: User, chosen: Sequence[int]) -> list[Prompt]:
    check(project=project, actor=actor, rows=len(chosen))
    rows = Prompt.objects.filter(project=project, pk__in=list(chosen))
    return list(rows.select_for_update().only("tags").order_by("pk"))


def _store(prompts: Sequence[Prompt], tags: Sequence[list[str]]) -> None:
    values = ((prompt.pk, json_value(new)) for prompt, new in zip(prompts, tags, strict=True))
    bulk.update(Prompt, "tags", values)


def _note(project: Project, actor: User, action: str, tag: str, number: int) -> None:
    details = {"tag": tag, "prompts": number}
    audit.record(action=action, subject=project, actor=actor, project=project, details=details)


def _tag(value: str) -> str:
    tag = value.strip()
    if not re.fullmatch(TAG, tag):
        raise Refusal(
            "invalid_tag",
            _("Enter a tag of 1 to %(most)s letters, digits, spaces, dots, colons and dashes."),
            most=LONGEST_TAG,
        )
    return tag
