"""Forms of work allocation: a rule of a project, and what a member gets."""

from django import forms
from django.utils.translation import gettext_lazy as _

from annotation.models.allocation import ALL, LONGEST_GROUP, LONGEST_SKILL, LONGEST_TAG

_MOST = 2**31 - 1


class RuleForm(forms.Form):
    """A tag of prompts, the skill that their comparisons ask for, and the share of them that does."""

    tag = forms.CharField(
        max_length=LONGEST_TAG, label=_("Tag of the prompt"), widget=forms.TextInput(attrs={"list": "tags"})
    )
    skill = forms.CharField(
        max_length=LONGEST_SKILL, label=_("Skill asked for"), widget=forms.TextInput(attrs={"list": "skills"})
    )
    share = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=ALL,
        initial=ALL,
        label=_("Share in percent"),
        help_text=_("The rest of the tag's comparisons goes to everybody."),
    )

    def clean_share(self) -> int:
        """Return the share; all where none is named."""
        return self.cleaned_data["share"] or ALL


class AllotmentForm(forms.Form):
    """The skills, the limits and the group of a member."""

    skills = forms.CharField(required=False, max_length=5_000)
    daily_limit = forms.IntegerField(required=False, min_value=1, max_value=_MOST)
    total_limit = forms.IntegerField(required=False, min_value=1, max_value=_MOST)
    group = forms.CharField(required=False, max_length=LONGEST_GROUP)

    def clean_group(self) -> str:
        """Return the name with single spaces."""
        return " ".join(self.cleaned_data["group"].split())

    def clean_skills(self) -> list[str]:
        """Return the names between the commas, each once."""
        names = (" ".join(name.split()) for name in self.cleaned_data["skills"].split(","))
        return list(dict.fromkeys(name for name in names if name))
