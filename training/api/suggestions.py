"""Suggestions of a project: their settings and the effect of help."""

from typing import Any

from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.api.quality import EstimateSerializer
from annotation.models import HelpSettings
from training.api.checkpoints import named_checkpoint
from training.forms.suggestions import sources_for
from training.models import SuggestionSource
from training.services.suggestions import DEFAULT_TEMPLATE, set_suggestions

_SETTINGS = ("control_share", "planted_share", "unread_seconds", "tells_planted")


def _share(meaning: str) -> serializers.FloatField:
    return fields.number(meaning, least=0, most=1, required=False)


class SuggestionSettingsSerializer(serializers.Serializer[Any]):
    """The settings of suggestions, with the work of their source."""

    is_active = fields.flag("Whether suggestions are shown after the first pass.")
    checkpoint = fields.text("A model that writes text, or a reward model.", most=100, allow_null=True)
    control_share = _share("Share of comparisons of each annotator without help.")
    planted_share = _share("Share of suggestions that are wrong on purpose.")
    unread_seconds = fields.number(
        "What is accepted faster counts as unread.", required=False, least=0, most=60
    )
    least_confidence = _share("Less sure suggestions are left out.")
    tells_planted = fields.flag(
        "Whether annotators are told what was planted, after their final pass.", required=False
    )
    template = fields.text(
        "What an AI annotator is asked.", required=False, most=20_000, trim_whitespace=False
    )
    state = fields.text(read_only=True, allow_null=True)
    message = fields.text(read_only=True)
    error = fields.text(read_only=True)
    compared = fields.integer("Comparisons that have their suggestions.", read_only=True)
    suggested = fields.integer(read_only=True)
    planted = fields.integer(read_only=True)


class HelpEffectSerializer(serializers.Serializer[Any]):
    """A quantity with help, without it, and the difference: with minus without."""

    helped = EstimateSerializer()
    control = EstimateSerializer()
    difference = EstimateSerializer()


class HelpReportSerializer(serializers.Serializer[Any]):
    """The effect of suggestions, by the randomised experiment of the project."""

    helped = fields.integer("Annotations drawn to get help.")
    control = fields.integer("Annotations drawn to get none.")
    unfinished = fields.integer("With help, without a final pass so far.")
    decisions = fields.integer()
    planted_rejected = EstimateSerializer()
    accepted = EstimateSerializer()
    accepted_unread = EstimateSerializer()
    seconds = HelpEffectSerializer()
    agreement = HelpEffectSerializer(help_text="Share of pairs decided as others did in their first passes.")
    gold = HelpEffectSerializer(help_text="Share of gold items that are right.")
    agreement_change = EstimateSerializer(help_text="From the first to the final pass.")
    gold_change = EstimateSerializer(help_text="From the first to the final pass.")
    lowers = fields.several(fields.text(), "Accuracies that help lowers: agreement, gold.")


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
    values["checkpoint"] = named_checkpoint(sources_for(view.project), values["checkpoint"])
    source = SuggestionSource.objects.filter(project=view.project).first()
    if source is not None:
        values = {"template": source.template, "least_confidence": source.least_confidence, **values}
    set_suggestions(project=view.project, by=view.user, **values)
    return suggestions_read(view)


@suggestions.get("effect/", returns=HelpReportSerializer)
def suggestions_effect(view: ProjectView) -> Any:
    """Read the effect of help with 95 % intervals, and the decisions on suggestions."""
    # NumPy is loaded when somebody asks, not with the web server.
    from annotation.statistics.help import help_report

    return help_report(view.project)
