"""Form of a webhook."""

from django import forms
from django.utils.translation import gettext_lazy as _

from annotation.choices import WebhookEvent


class WebhookForm(forms.Form):
    """An address, what it is for, and what it is told of."""

    url = forms.CharField(
        label=_("Address"),
        max_length=500,
        widget=forms.URLInput(attrs={"autocomplete": "off", "placeholder": "https://"}),
        help_text=_("Messages are sent there by POST, over TLS. Redirects are not followed."),
    )
    description = forms.CharField(label=_("What it is for"), max_length=200, required=False)
    events = forms.MultipleChoiceField(
        label=_("Events"),
        choices=WebhookEvent.choices,
        widget=forms.CheckboxSelectMultiple,
    )


class WebhookSettingsForm(WebhookForm):
    """The same of a webhook that there is, and whether it is switched on."""

    is_enabled = forms.BooleanField(label=_("Switched on"), required=False)
