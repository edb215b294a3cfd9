"""Form of an invitation."""

from django import forms
from django.utils.translation import gettext_lazy as _

from annotation.choices import Role
from annotation.services.projects.invitations import MOST_DAYS, MOST_USES


class InvitationForm(forms.Form):
    """Role, life and number of people of a link."""

    role = forms.ChoiceField(choices=Role.choices, label=_("They join as"), initial=Role.ANNOTATOR)
    days = forms.IntegerField(label=_("Expires after (days)"), initial=7, min_value=1, max_value=MOST_DAYS)
    most_uses = forms.IntegerField(label=_("Max. uses"), initial=1, min_value=1, max_value=MOST_USES)
    note = forms.CharField(
        max_length=100, required=False, label=_("Note"), help_text=_("Whom it is for. Only managers see it.")
    )
    email = forms.EmailField(
        max_length=254,
        required=False,
        label=_("E-mail address"),
        help_text=_("The link is sent there and not shown here. Leave empty to copy the link yourself."),
    )
