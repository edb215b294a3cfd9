"""Forms that add a base model, one for each origin, and the choice of a project's base."""

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from training.choices import BaseOrigin
from training.models import BaseModel
from training.selectors.base_models import trainable_bases


def _name() -> forms.CharField:
    return forms.CharField(
        max_length=100,
        required=False,
        label=_("Name"),
        help_text=_("Its name here: letters, digits, . - _. Empty takes its present name."),
    )


class StarterForm(forms.Form):
    """The starter package needs no settings."""


class FolderForm(forms.Form):
    """A folder on the server."""

    folder = forms.CharField(
        max_length=1000,
        label=_("Folder"),
        help_text=_(
            "Absolute path on the server of a folder with config.json, tokenizer.json and *.safetensors."
        ),
    )
    name = _name()


class HubForm(forms.Form):
    """A model on the hub, at one commit; the licence is accepted once it was shown."""

    repository = forms.CharField(
        max_length=200, label=_("Model id"), widget=forms.TextInput(attrs={"placeholder": "owner/name"})
    )
    revision = forms.CharField(
        max_length=100,
        required=False,
        label=_("Revision"),
        help_text=_("Branch, tag or commit; empty is the main branch. The commit is pinned."),
    )
    name = _name()
    licence = forms.CharField(max_length=200, required=False, widget=forms.HiddenInput)
    accept = forms.BooleanField(required=False, label=_("I have read the licence and accept it"))


class ServerForm(forms.Form):
    """A model of another OpenAI-compatible server."""

    server_url = forms.CharField(
        max_length=200, label=_("Address"), help_text=_("Such as https://models.example.org/v1")
    )
    server_model = forms.CharField(max_length=200, label=_("Its name there"))
    server_key = forms.CharField(
        max_length=100,
        required=False,
        label=_("Variable with the key"),
        help_text=_(
            "The environment variable that holds the server's key. Its name begins with RONDO_SERVER_KEY_; "
            "the key itself is never stored."
        ),
    )
    name = _name()


FORMS: dict[BaseOrigin, type[forms.Form]] = {
    BaseOrigin.HUB: HubForm,
    BaseOrigin.FOLDER: FolderForm,
    BaseOrigin.STARTER: StarterForm,
    BaseOrigin.SERVER: ServerForm,
}
"""By origin, in the order of the page."""


class ProjectBaseForm(forms.Form):
    """The base model of a project's next round."""

    base = forms.ModelChoiceField(
        BaseModel.objects.none(), label=_("Base model"), to_field_name="name", empty_label=None
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["base"]
        assert isinstance(field, forms.ModelChoiceField)  # noqa: S101 - declared above
        field.queryset = trainable_bases()
