"""Form of a new project."""

from typing import Any

from django import forms
from django.utils.text import slugify
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from annotation.services.projects.templates import TEMPLATES


class NewProjectForm(forms.Form):
    """Name, address and template of a project, and a file to import into it."""

    name = forms.CharField(label=_("Name"), max_length=120, widget=forms.TextInput(attrs={"autofocus": True}))
    slug = forms.SlugField(
        label=_("Address (optional)"),
        max_length=80,
        required=False,
        help_text=_("Last part of the project's address; made of the name if empty. It stays."),
    )
    description = forms.CharField(
        label=_("Description (optional)"), required=False, widget=forms.Textarea(attrs={"rows": 2})
    )
    template = forms.ChoiceField(
        label=_("Template"),
        choices=[(template.key, template.name) for template in TEMPLATES.values()],
        initial=next(iter(TEMPLATES)),
        widget=forms.RadioSelect,
    )
    upload = forms.FileField(
        label=_("File to import (optional)"),
        required=False,
        help_text=_("JSON Lines, JSON or CSV. Nothing is imported before you have seen a preview."),
        widget=forms.FileInput(attrs={"accept": ".jsonl,.json,.csv,.tsv"}),
    )

    def clean(self) -> dict[str, Any]:
        """Derive the address from the name, and require the file where the template needs one."""
        values: dict[str, Any] = super().clean() or self.cleaned_data
        if values.get("name") and not values.get("slug") and "slug" not in self.errors:
            values["slug"] = slugify(values["name"])[:80]
            if not values["slug"]:
                message = gettext("The name has no letter for an address. Enter one, such as tea-2.")
                self.add_error("slug", message)
        template = TEMPLATES.get(values.get("template", ""))
        lacks_file = not values.get("upload") and "upload" not in self.errors
        if template is not None and template.needs_file and lacks_file:
            self.add_error("upload", gettext("Choose a file, or another template."))
        return values
