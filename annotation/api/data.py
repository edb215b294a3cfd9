"""Bulk actions on comparisons and prompts, with a preview of their effect."""

from collections.abc import Callable, Sequence
from typing import Any

from django.db import transaction
from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.services import bulk
from annotation.services.bulk import LONGEST_TAG, MOST_OVERLAP, MOST_PRIORITY, MOST_ROWS, TAG


def _keys() -> serializers.ListField:
    """Return a field of primary keys."""
    key = fields.integer(least=1, most=2**53)
    return fields.several(key, most=MOST_ROWS)


class ComparisonsActionSerializer(serializers.Serializer[Any]):
    """Bulk actions on comparisons: release, requeue, close, review, quarantine, overlap, priority, assign."""

    comparisons = _keys()
    requeue = fields.flag("Ask one more annotator where all annotations are submitted.", default=False)
    overlap = fields.integer("Raise the overlap to this.", required=False, least=1, most=MOST_OVERLAP)
    priority = fields.integer(
        "Within a round higher ones are handed out first.",
        required=False,
        least=-MOST_PRIORITY,
        most=MOST_PRIORITY,
    )
    close = fields.flag("Ask nobody else; annotations stay.", default=False)
    review = fields.flag("Open a review where there is none.", default=False)
    release = fields.flag("Release from quarantine.", default=False)
    quarantine = fields.flag("Keep from annotators until a manager decides; annotations stay.", default=False)
    assign = fields.several(
        serializers.RegexField(r"^[^,]+$", max_length=150),
        "Usernames of the members who alone get them; an empty list for everybody.",
        required=False,
        most=50,
    )
    dry_run = fields.flag("Return the effects and change nothing.", default=False)


class PromptsActionSerializer(serializers.Serializer[Any]):
    """Bulk actions on prompts: tags to add and to remove."""

    prompts = _keys()
    tag = serializers.RegexField(
        rf"^{TAG}$", required=False, max_length=LONGEST_TAG, trim_whitespace=False, help_text="Add this tag."
    )
    untag = serializers.RegexField(
        rf"^{TAG}$",
        required=False,
        max_length=LONGEST_TAG,
        trim_whitespace=False,
        help_text="Remove this tag.",
    )
    dry_run = fields.flag("Return the effects and change nothing.", default=False)


class EffectSerializer(serializers.Serializer[Any]):
    """The effect of one bulk action."""

    action = fields.text()
    changed = fields.integer("Rows.")
    skipped = serializers.DictField(child=fields.integer(), help_text="Reason → rows.")


_Action = tuple[str, Callable[..., bulk.Effect], Values]
_PLAIN: dict[str, Callable[..., bulk.Effect]] = {
    "release": bulk.release,
    "requeue": bulk.requeue,
    "close": bulk.close,
    "review": bulk.send_to_review,
    "quarantine": bulk.quarantine,
}
_NUMBERED: dict[str, Callable[..., bulk.Effect]] = {
    "overlap": bulk.raise_overlap,
    "priority": bulk.set_priority,
}


comparisons = Resource(ProjectView, f"{PROJECT}comparisons/act/", tag="texts")
prompts = Resource(ProjectView, f"{PROJECT}prompts/act/", tag="texts")


@comparisons.post(takes=ComparisonsActionSerializer, returns=[EffectSerializer])
def comparisons_act(view: ProjectView, values: Values) -> list[Values]:
    """Release, re-queue, close, review, quarantine or assign comparisons, raise overlap, set priority.

    All or nothing, in the order of the document.
    """
    chosen: list[_Action] = [(name, action, {}) for name, action in _PLAIN.items() if values[name]]
    chosen += [
        (name, action, {"value": str(values[name])}) for name, action in _NUMBERED.items() if name in values
    ]
    if "assign" in values:
        chosen.append(("assign", bulk.reserve, {"value": ",".join(values["assign"])}))
    return _act(view, values["comparisons"], chosen, dry_run=values["dry_run"])


@prompts.post(takes=PromptsActionSerializer, returns=[EffectSerializer])
def prompts_act(view: ProjectView, values: Values) -> list[Values]:
    """Add a tag to prompts, or remove one, all or nothing."""
    actions = {"tag": bulk.add_tag, "untag": bulk.remove_tag}
    chosen = [(name, action, {"value": values[name]}) for name, action in actions.items() if name in values]
    return _act(view, values["prompts"], chosen, dry_run=values["dry_run"])


@transaction.atomic
def _act(
    view: ProjectView,
    rows: Sequence[int],
    actions: Sequence[_Action],
    *,
    dry_run: bool,
) -> list[Values]:
    """Execute actions, each with a value where it takes one, and return their effects."""
    effects = []
    for name, action, value in actions:
        effect = action(project=view.project, actor=view.user, chosen=rows, dry_run=dry_run, **value)
        skipped = {str(why): number for why, number in effect.skipped.items()}
        effects.append({"action": name, "changed": effect.changed, "skipped": skipped})
    return effects
