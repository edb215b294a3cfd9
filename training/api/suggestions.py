"""Suggestions of a project: their settings and the effect of help."""

from typing import Any

from django.utils.translation import gettext as _
from rest_framework import serializers

from annotation.api.base import ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.api.quality import EstimateSerializer
from annotation.models import HelpSettings
from training.forms.suggestions import sources_for
from training.models import SuggestionSource
from training.services.suggestions.asking import DEFAULT_TEMPLATE
from training.services.suggestions.suggesting import set_suggestions

_SETTINGS = ("control_share", "planted_share", "unread_seconds", "tells_planted")


def _share(**more: Any) -> serializers.FloatField:
    return serializers.FloatField(min_value=0, max_value=1, **more)


class SuggestionSettingsSerializer(serializers.Serializer[Any]):
    """The settings of suggestions, with the work of their source."""

    is_active = serializers.BooleanField(help_text="Whether suggestions are shown after the first pass.")
    checkpoint = serializers.CharField(
        max_length=100, allow_null=True, help_text="A model that writes text, or a reward model."
    )
    control_share = _share(required=False, help_text="Share of comparisons of each annotator without help.")
    planted_share = _share(required=False, help_text="Share of suggestions that are wrong on purpose.")
    unread_seconds = serializers.FloatField(
        required=False, min_value=0, max_value=60, help_text="What is accepted faster counts as unread."
    )
    least_confidence = _share(required=False, help_text="Less sure suggestions are left out.")
    tells_planted = serializers.BooleanField(
        required=False, help_text="Whether annotators are told what was planted, after their final pass."
    )
    template = serializers.CharField(
        required=False, max_length=20_000, trim_whitespace=False, help_text="What an AI annotator is asked."
    )
    state = serializers.CharField(read_only=True, allow_null=True)
    message = serializers.CharField(read_only=True)
    error = serializers.CharField(read_only=True)
    compared = serializers.IntegerField(read_only=True, help_text="Comparisons that have their suggestions.")
    suggested = serializers.IntegerField(read_only=True)
    planted = serializers.IntegerField(read_only=True)


class HelpEffectSerializer(serializers.Serializer[Any]):
    """A quantity with help, without it, and the difference: with minus without."""

    helped = EstimateSerializer()
    control = EstimateSerializer()
    difference = EstimateSerializer()


class HelpReportSerializer(serializers.Serializer[Any]):
    """The effect of suggestions, by the randomised experiment of the project."""

    helped = serializers.IntegerField(help_text="Annotations drawn to get help.")
    control = serializers.IntegerField(help_text="Annotations drawn to get none.")
    unfinished = serializers.IntegerField(help_text="With help, without a final pass so far.")
    decisions = serializers.IntegerField()
    planted_rejected = EstimateSerializer()
    accepted = EstimateSerializer()
    accepted_unread = EstimateSerializer()
    seconds = HelpEffectSerializer()
    agreement = HelpEffectSerializer(help_text="Share of pairs decided as others did in their first passes.")
    gold = HelpEffectSerializer(help_text="Share of gold items that are right.")
    agreement_change = EstimateSerializer(help_text="From the first to the final pass.")
    gold_change = EstimateSerializer(help_text="From the first to the final pass.")
    lowers = serializers.ListField(
        child=serializers.CharField(), help_text="Accuracies that help lowers: agreement, gold."
    )


suggestions = Resource(ProjectView, f"{PROJECT}suggestions/", tag="quality")


@suggestions.get(returns=SuggestionSettingsSerializer)
def suggestions_read(view: ProjectView) -> Values:
    """Read the settings of suggestions, and how far their source is."""
    settings = HelpSettings.objects.filter(project=view.project).first() or HelpSettings()
    source = SuggestionSource.objects.filter(project=view.project).select_related("checkpoint").first()
    return {
        "is_active": view.project.has_help,
        **{name: getattr(settings, name) for name in _SETTINGS},
        "checkpoint": source.checkpoint.name if source else None,
        "template": source.template if source else DEFAULT_TEMPLATE,
        "state": source.state if source else None,
        "least_confidence": source.least_confidence if source else 0.5,
        "message": source.message if source else "",
        "error": source.error if source else "",
        "compared": source.compared if source else 0,
        "suggested": source.suggested if source else 0,
        "planted": source.planted if source else 0,
    }


@suggestions.put(takes=SuggestionSettingsSerializer, returns=SuggestionSettingsSerializer)
def suggestions_set(view: ProjectView, values: Values) -> Values:
    """Switch suggestions on or off and set their source. What is left out keeps its value."""
    checkpoint = sources_for(view.project).filter(name=values.pop("checkpoint") or "").first()
    if checkpoint is None:
        raise serializers.ValidationError({"checkpoint": [_("There is no such checkpoint.")]})
    source = SuggestionSource.objects.filter(project=view.project).first()
    if source is not None:
        values = {"template": source.template, "least_confidence": source.least_confidence, **values}
    set_suggestions(project=view.project, by=view.user, checkpoint=checkpoint, **values)
    return suggestions_read(view)


@suggestions.get("effect/", returns=HelpReportSerializer)
def suggestions_effect(view: ProjectView) -> Any:
    """Read the effect of help with 95 % intervals, and the decisions on suggestions."""
    # NumPy is loaded when somebody asks, not with the web server.
    from annotation.statistics.help_report import help_report

    return help_report(view.project)
