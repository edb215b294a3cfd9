"""Bulk actions on comparisons and prompts, with a preview of their effect."""

from collections.abc import Callable, Sequence
from typing import Any

from django.db import transaction
from rest_framework import serializers

from annotation.api.base import ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.services import bulk
from annotation.services.bulk.comparisons import MOST_OVERLAP, MOST_PRIORITY
from annotation.services.bulk.effect import MOST_ROWS
from annotation.services.bulk.prompts import LONGEST_TAG, TAG


def _keys() -> serializers.ListField:
    """Return a field of primary keys."""
    key = serializers.IntegerField(min_value=1, max_value=2**53)
    return serializers.ListField(child=key, max_length=MOST_ROWS)


class ComparisonsActionSerializer(serializers.Serializer[Any]):
    """Bulk actions on comparisons: release, requeue, close, review, quarantine, overlap, priority, assign."""

    comparisons = _keys()
    requeue = serializers.BooleanField(
        default=False, help_text="Ask one more annotator where all annotations are submitted."
    )
    overlap = serializers.IntegerField(
        required=False, min_value=1, max_value=MOST_OVERLAP, help_text="Raise the overlap to this."
    )
    priority = serializers.IntegerField(
        required=False,
        min_value=-MOST_PRIORITY,
        max_value=MOST_PRIORITY,
        help_text="Within a round higher ones are handed out first.",
    )
    close = serializers.BooleanField(default=False, help_text="Ask nobody else; annotations stay.")
    review = serializers.BooleanField(default=False, help_text="Open a review where there is none.")
    release = serializers.BooleanField(default=False, help_text="Release from quarantine.")
    quarantine = serializers.BooleanField(
        default=False, help_text="Keep from annotators until a manager decides; annotations stay."
    )
    assign = serializers.ListField(
        child=serializers.RegexField(r"^[^,]+$", max_length=150),
        required=False,
        max_length=50,
        help_text="Usernames of the members who alone get them; an empty list for everybody.",
    )
    dry_run = serializers.BooleanField(default=False, help_text="Return the effects and change nothing.")


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
    dry_run = serializers.BooleanField(default=False, help_text="Return the effects and change nothing.")


class EffectSerializer(serializers.Serializer[Any]):
    """The effect of one bulk action."""

    action = serializers.CharField()
    changed = serializers.IntegerField(help_text="Rows.")
    skipped = serializers.DictField(child=serializers.IntegerField(), help_text="Reason → rows.")


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
