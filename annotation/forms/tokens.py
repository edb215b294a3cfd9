"""Form of an API token."""

from datetime import timedelta
from typing import Any

from django import forms
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from annotation.choices import TokenScope

_LIVES = [("30", _("30 days")), ("90", _("90 days")), ("365", _("a year")), ("", _("until it is revoked"))]


class TokenForm(forms.Form):
    """Name, purpose and life of a token."""

    name = forms.CharField(
        max_length=100, label=_("Name"), help_text=_("Where it is used, such as “evaluation script”.")
    )
    scopes = forms.MultipleChoiceField(
        choices=TokenScope.choices,
        label=_("It may"),
        initial=[TokenScope.READ],
        widget=forms.CheckboxSelectMultiple,
    )
    days = forms.ChoiceField(choices=_LIVES, label=_("Expires after"), required=False, initial="90")

    def clean_days(self) -> Any:
        """The moment at which it ends; None for never."""
        days = self.cleaned_data["days"]
        return timezone.now() + timedelta(days=int(days)) if days else None
