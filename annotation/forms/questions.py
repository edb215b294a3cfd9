"""Forms of a project's questions: what is asked, its categories and its criteria."""

from typing import Any

from django import forms
from django.utils.text import slugify
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from annotation.forms.projects import QUESTIONS
from annotation.models import Category, Criterion, Project


class AskedForm(forms.ModelForm):  # type: ignore[type-arg]  # not subscriptable at run time
    """The parts of the labelling screen that a project asks for."""

    class Meta:
        model = Project
        fields = list(QUESTIONS)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for name, (label, help_text) in QUESTIONS.items():
            self.fields[name].label = label  # type: ignore[assignment]
            self.fields[name].help_text = help_text  # type: ignore[assignment]


class QuestionForm(forms.ModelForm):  # type: ignore[type-arg]
    """The fields that categories and criteria share. The key and one more are chosen once."""

    chosen_once = ""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.instance.pk is not None:
            for name in ("key", self.chosen_once):
                del self.fields[name]
        else:
            self.fields["key"].required = False

    def clean(self) -> dict[str, Any]:
        """Derive the key from the label where none is entered."""
        values: dict[str, Any] = super().clean() or self.cleaned_data
        if (
            "key" in self.fields
            and values.get("label")
            and not values.get("key")
            and "key" not in self.errors
        ):
            values["key"] = slugify(values["label"])[:60]
            if not values["key"]:
                self.add_error("key", gettext("The label has no letter for a key. Enter one, such as tone."))
        return values

    def _post_clean(self) -> None:
        """Leave the model's checks to the service, which names the field as well."""


_KEY_HELP = _("Name in exports; made of the label if empty. It stays.")


class CategoryForm(QuestionForm):
    """A category of spans or of missing information."""

    chosen_once = "scope"

    class Meta:
        model = Category
        fields = (
            *("label", "description", "key", "scope", "granularity"),
            *("polarity", "severity_steps", "shortcut", "colour"),
        )
        labels = {
            "label": _("Label"),
            "description": _("Description"),
            "key": _("Key (optional)"),
            "scope": _("For"),
            "granularity": _("Segment"),
            "polarity": _("Meaning"),
            "severity_steps": _("Steps of severity"),
            "shortcut": _("Keyboard key"),
            "colour": _("Colour"),
        }
        help_texts = {
            "label": _("Annotators read it."),
            "description": _("One sentence on when to use it."),
            "key": _KEY_HELP,
            "scope": _("It stays."),
            "granularity": _("Stretch of text that is rewarded by this category."),
            "polarity": "",
            "severity_steps": _("1 is the mildest; 0 asks for none."),
            "shortcut": _("One character that annotates a span with this category."),
            "colour": "",
        }
        widgets = {
            "description": forms.Textarea(attrs={"rows": 2}),
            "colour": forms.TextInput(attrs={"type": "color"}),
        }


class CriterionForm(QuestionForm):
    """A criterion by which every response is rated."""

    chosen_once = "scale"

    class Meta:
        model = Criterion
        fields = ("label", "description", "key", "scale")
        labels = {
            "label": _("Label"),
            "description": _("Description"),
            "key": _("Key (optional)"),
            "scale": _("Scale"),
        }
        help_texts = {
            "label": _("Annotators read it."),
            "description": _("The meaning of the lowest and the highest step."),
            "key": _KEY_HELP,
            "scale": _("It stays."),
        }
        widgets = {"description": forms.Textarea(attrs={"rows": 2})}
