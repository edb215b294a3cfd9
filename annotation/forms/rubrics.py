"""Forms of a rubric: its name, and its criteria one by one."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from django import forms
from django.utils.translation import gettext_lazy as _

from annotation.choices import RatingScale
from annotation.models import RubricVersion
from annotation.services.projects.rubrics import (
    MOST_CHARACTERS,
    MOST_CRITERIA,
    MOST_WEIGHT,
    RubricCriterionInput,
)

SCALES = (
    (RatingScale.FIVE, _("1 to 5")),
    (RatingScale.SEVEN, _("1 to 7")),
    (RatingScale.THUMBS, _("no or yes")),
)


class RubricForm(forms.Form):
    """The name of a rubric."""

    name = forms.CharField(max_length=80, label=_("Name"))


class RubricCriterionForm(forms.Form):
    name = forms.CharField(max_length=80, label=_("Name"))
    text = forms.CharField(
        max_length=MOST_CHARACTERS,
        required=False,
        label=_("Question"),
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text=_("A response is scored by it; more is better."),
    )
    scale = forms.ChoiceField(choices=SCALES, initial=RatingScale.FIVE, label=_("Scale"))
    weight = forms.FloatField(
        min_value=0.01,
        max_value=MOST_WEIGHT,
        initial=1,
        label=_("Weight"),
        widget=forms.NumberInput(attrs={"step": "any", "min": "0.01"}),
    )
    levels = forms.CharField(
        max_length=MOST_CHARACTERS,
        required=False,
        label=_("Levels"),
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text=_("The meaning of the steps. May be left empty."),
    )


if TYPE_CHECKING:
    # Generic in the type stubs alone.
    _FormSet = forms.BaseFormSet[RubricCriterionForm]
else:
    _FormSet = forms.BaseFormSet


class CriterionFormSet(_FormSet):
    """The criteria in their order; a blank form is left out."""

    deletion_widget = forms.CheckboxInput

    @property
    def criteria(self) -> list[RubricCriterionInput]:
        """The criteria that stay, by position."""
        ordered = sorted(
            (form.cleaned_data for form in self.forms if form.cleaned_data and not self._leaves(form)),
            key=lambda values: values["ORDER"] or MOST_CRITERIA + 1,
        )
        return [
            RubricCriterionInput(
                name=values["name"],
                text=values["text"],
                levels=values["levels"],
                scale=values["scale"],
                weight=values["weight"],
            )
            for values in ordered
        ]

    def _leaves(self, form: RubricCriterionForm) -> bool:
        return bool(form.cleaned_data.get("DELETE")) or not form.cleaned_data.get("name")

    def add_fields(self, form: RubricCriterionForm, index: int | None) -> None:
        """Add position and removal, under labels of our own."""
        super().add_fields(form, index)
        form.fields["ORDER"].label = _("Position")
        form.fields["DELETE"].label = _("Remove")


def criterion_forms(
    data: Mapping[str, Any] | None = None, initial: Iterable[Mapping[str, Any]] = ()
) -> CriterionFormSet:
    """Return the forms of a rubric's criteria, and blank ones for more."""
    rows = list(initial)
    made: Any = forms.formset_factory(
        RubricCriterionForm,
        formset=CriterionFormSet,
        extra=3 if not rows else min(2, max(0, MOST_CRITERIA - len(rows))),
        can_order=True,
        can_delete=True,
        max_num=MOST_CRITERIA,
        absolute_max=MOST_CRITERIA + 5,
        validate_max=True,
    )
    formset: CriterionFormSet = made(data, initial=rows or None, prefix="criteria")
    return formset


def initial_of(version: RubricVersion | None) -> list[dict[str, Any]]:
    """Return the criteria of a version as the first values of their forms."""
    if version is None:
        return []
    return [
        {"name": row.name, "text": row.text, "scale": row.scale, "weight": row.weight, "levels": row.levels}
        for row in version.criteria.all()
    ]
