"""The form by which a manager switches suggestions on, with their source and the experiment."""

from typing import Any

from django import forms
from django.db.models import Q, QuerySet
from django.http import QueryDict
from django.utils.translation import gettext_lazy as _

from annotation.forms import offer
from annotation.models import HelpSettings, Project
from training.choices import CheckpointKind
from training.models import Checkpoint, SuggestionSource
from training.services.suggestions import DEFAULT_TEMPLATE, SOURCES


def _share(label: Any, help_text: Any) -> forms.FloatField:
    return forms.FloatField(
        min_value=0.0,
        max_value=1.0,
        label=label,
        help_text=help_text,
        widget=forms.NumberInput({"step": "0.05"}),
    )


class SuggestionsForm(forms.Form):
    """Suggestions of a project: whether, by whom, and what is measured."""

    is_active = forms.BooleanField(
        required=False, label=_("Show suggestions after the first pass"), help_text=_("Arms stay as drawn.")
    )
    checkpoint = forms.ModelChoiceField(
        Checkpoint.objects.none(),
        label=_("Source"),
        help_text=_("A model that writes text is asked as an AI annotator; a reward model scores segments."),
    )
    control_share = _share(
        _("Share without help"), _("Comparisons of each annotator without suggestions, as control; 0 to 1.")
    )
    planted_share = _share(
        _("Share planted wrong"),
        _("Suggestions that are wrong on purpose; for comparisons computed from now on."),
    )
    unread_seconds = forms.FloatField(
        min_value=0.0,
        max_value=60.0,
        label=_("Accepted unread below (s)"),
        help_text=_("A suggestion accepted faster counts as unread."),
        widget=forms.NumberInput({"step": "0.5"}),
    )
    least_confidence = _share(
        _("Lowest confidence"), _("Suggestions of which the model is less sure are left out; 0 to 1.")
    )
    tells_planted = forms.BooleanField(
        required=False,
        label=_("Tell annotators what was planted"),
        help_text=_("After their final pass. It never counts against anyone."),
    )
    template = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 12, "spellcheck": "false"}),
        strip=False,
        label=_("What an AI annotator is asked"),
        help_text=_(
            "{guidelines}, {conversation} and {answers} as for judges; {form} is the reply in the expected "
            "form, {spans} and {missing} list the categories."
        ),
    )

    def __init__(self, data: QueryDict | None, *, project: Project) -> None:
        super().__init__(data, initial=_initial(project))
        offer(self, "checkpoint", sources_for(project))


def sources_for(project: Project) -> QuerySet[Checkpoint]:
    """Return the checkpoints that can suggest in a project: its own, and models that belong to none."""
    return Checkpoint.objects.filter(
        Q(project=project) | Q(project__isnull=True, kind__in=SOURCES) & ~Q(kind=CheckpointKind.REWARD),
        kind__in=SOURCES,
        files_deleted_at__isnull=True,
    ).order_by("-pk")


def _initial(project: Project) -> dict[str, Any]:
    settings = HelpSettings.objects.filter(project=project).first() or HelpSettings(project=project)
    source = SuggestionSource.objects.filter(project=project).first()
    names = ("control_share", "planted_share", "unread_seconds", "tells_planted")
    return {
        "is_active": project.has_help,
        **{name: getattr(settings, name) for name in names},
        "checkpoint": source.checkpoint_id if source else None,
        "least_confidence": source.least_confidence if source else 0.5,
        "template": (source.template if source else "") or DEFAULT_TEMPLATE,
    }
