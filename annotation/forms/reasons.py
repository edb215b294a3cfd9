"""Reasons for a skip or a flag."""

from django import forms
from django.utils.translation import gettext_lazy as _


class SkipForm(forms.Form):
    """Reasons for a skip."""

    reason = forms.CharField(max_length=200, error_messages={"required": _("Choose a reason.")})
    details = forms.CharField(required=False, max_length=2000)

    @property
    def text(self) -> str:
        """The reason with its details. Only after `is_valid()`."""
        reason, details = self.cleaned_data["reason"], self.cleaned_data["details"]
        return f"{reason}: {details}" if details else str(reason)


class FlagForm(forms.Form):
    """Reasons for a flag."""

    reason = forms.CharField(max_length=200, error_messages={"required": _("Choose a reason.")})
    details = forms.CharField(required=False, max_length=2000)
