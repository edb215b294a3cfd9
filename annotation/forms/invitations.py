"""What is entered to invite somebody."""

from django import forms
from django.utils.translation import gettext_lazy as _

from annotation.choices import Role
from annotation.services.invitations import MOST_DAYS, MOST_USES


class InvitationForm(forms.Form):
    """Role, life and number of people of a link."""

    role = forms.ChoiceField(choices=Role.choices, label=_("They join as"), initial=Role.ANNOTATOR)
    days = forms.IntegerField(
        label=_("The link holds for so many days"), initial=7, min_value=1, max_value=MOST_DAYS
    )
    most_uses = forms.IntegerField(
        label=_("So many people may join by it"), initial=1, min_value=1, max_value=MOST_USES
    )
    note = forms.CharField(
        max_length=100, required=False, label=_("Note"), help_text=_("Whom it is for. Only managers see it.")
    )
