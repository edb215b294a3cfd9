"""Bulk actions on comparisons and prompts, with a preview of their effect."""

from collections.abc import Callable
from typing import Any

from django.db import transaction
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ProjectView, read_body
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


def _body(action: str, effect: bulk.Effect) -> dict[str, Any]:
    skipped = {str(why): number for why, number in effect.skipped.items()}
    return {"action": action, "changed": effect.changed, "skipped": skipped}


class ComparisonsActionView(ProjectView):
    """Bulk actions on comparisons. For managers."""

    @extend_schema(
        operation_id="comparisons_act",
        tags=["texts"],
        request=ComparisonsActionSerializer,
        responses=EffectSerializer(many=True),
    )
    def post(self, request: Request, slug: str) -> Response:
        """Release, re-queue, close, review, quarantine or assign comparisons, raise overlap, set priority.

        All or nothing, in the order of the document.
        """
        values = read_body(ComparisonsActionSerializer, request)
        rows = {
            "project": self.project,
            "actor": self.user,
            "chosen": values["comparisons"],
            "dry_run": values["dry_run"],
        }
        effects = []
        with transaction.atomic():
            for name, action in _PLAIN.items():
                if values[name]:
                    effects.append(_body(name, action(**rows)))
            for name, change in _NUMBERED.items():
                if name in values:
                    effects.append(_body(name, change(**rows, value=str(values[name]))))
            if "assign" in values:
                effects.append(_body("assign", bulk.reserve(**rows, value=",".join(values["assign"]))))
        return Response(effects)


class PromptsActionView(ProjectView):
    """Bulk actions on prompts. For managers."""

    @extend_schema(
        operation_id="prompts_act",
        tags=["texts"],
        request=PromptsActionSerializer,
        responses=EffectSerializer(many=True),
    )
    def post(self, request: Request, slug: str) -> Response:
        """Add a tag to prompts, or remove one, all or nothing."""
        values = read_body(PromptsActionSerializer, request)
        rows = {
            "project": self.project,
            "actor": self.user,
            "chosen": values["prompts"],
            "dry_run": values["dry_run"],
        }
        effects = []
        with transaction.atomic():
            if "tag" in values:
                effects.append(_body("tag", bulk.add_tag(**rows, value=values["tag"])))
            if "untag" in values:
                effects.append(_body("untag", bulk.remove_tag(**rows, value=values["untag"])))
        return Response(effects)
