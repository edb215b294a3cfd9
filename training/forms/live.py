"""The form by which a manager has the policy learn while people label."""

import json
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.http import QueryDict
from django.utils.translation import gettext_lazy as _

from annotation.models import Project
from training.models import (
    LEAST_AHEAD,
    LEAST_JUDGMENTS,
    MOST_AHEAD,
    MOST_JUDGMENTS,
    LiveLearning,
    validate_live_policy,
)


class _Indented(forms.JSONField):
    """JSON as people edit it."""

    def prepare_value(self, value: Any) -> Any:
        """Return the value with an indent; what was sent and is no JSON as it was sent."""
        return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


class LiveForm(forms.Form):
    """Live learning of a project: whether, after how many judgments, and how an update trains."""

    is_active = forms.BooleanField(
        required=False,
        label=_("Learn while people label"),
        help_text=_("Annotations move the policy, and the next responses come from it."),
    )
    every = forms.IntegerField(
        min_value=LEAST_JUDGMENTS,
        max_value=MOST_JUDGMENTS,
        label=_("Update after (annotations)"),
        help_text=_("Annotations that prefer a response to a training prompt."),
    )
    ahead = forms.IntegerField(
        min_value=LEAST_AHEAD,
        max_value=MOST_AHEAD,
        label=_("Comparisons ahead"),
        help_text=_("Fresh comparisons that wait at most; more for more annotators at once."),
    )
    policy = _Indented(
        widget=forms.Textarea(attrs={"rows": 12, "spellcheck": "false"}),
        label=_("Settings of an update"),
        help_text=_("Direct preference optimisation on people’s annotations, as in a recipe."),
    )

    def __init__(self, data: QueryDict | None, *, project: Project) -> None:
        live = LiveLearning.objects.filter(project=project).first() or LiveLearning(is_active=False)
        names = ("is_active", "every", "ahead", "policy")
        super().__init__(data, initial={name: getattr(live, name) for name in names})

    def clean_policy(self) -> dict[str, Any]:
        """Refuse what a trainer would refuse."""
        policy = self.cleaned_data["policy"]
        if not isinstance(policy, dict):
            raise ValidationError(_("Write an object in JSON."))
        validate_live_policy(policy)
        return policy
