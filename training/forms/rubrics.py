"""Form of a rubric's draft."""

from django import forms
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from annotation.models import Project
from training.choices import WRITES_TEXT
from training.models import Checkpoint
from training.services.rubric_drafts import LEAST_PAIRS, MOST_PAIRS


class RubricDraftForm(forms.Form):
    """A model that drafts criteria, and the number of pairs that it gets."""

    checkpoint = forms.ModelChoiceField(
        Checkpoint.objects.none(),
        label=_("Model"),
        help_text=_(
            "A checkpoint of this project, or a model of another server that an administrator added."
        ),
    )
    pairs = forms.IntegerField(
        min_value=LEAST_PAIRS,
        max_value=MOST_PAIRS,
        initial=24,
        label=_("Max. pairs"),
        help_text=_("Drawn at random from decided pairs of training prompts; a third checks the criteria."),
    )
    max_tokens = forms.IntegerField(
        min_value=64, max_value=8192, initial=1024, label=_("Longest reply, in tokens")
    )

    def __init__(self, *args: object, project: Project) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        field = self.fields["checkpoint"]
        assert isinstance(field, forms.ModelChoiceField)  # noqa: S101 - declared above
        field.queryset = Checkpoint.objects.filter(
            Q(project=project) | Q(project__isnull=True), kind__in=WRITES_TEXT, files_deleted_at__isnull=True
        )
