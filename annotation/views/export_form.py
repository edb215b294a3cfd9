"""Form of an export: format and filters, as a link can fill it, too."""

from typing import Any
from uuid import UUID

from django import forms
from django.http import QueryDict
from django.utils.translation import gettext_lazy as _

from annotation.choices import Split
from annotation.errors import Refusal
from annotation.exchange.file_exports import COMPARISONS, ExportFilters, require_known
from annotation.exchange.formats.registry import WRITERS
from annotation.forms.statistics import rounds_of
from annotation.models import Project
from annotation.selectors.cached_counts import cached
from annotation.selectors.judged import who_judged

_ANY = ("", _("all"))


class ExportForm(forms.Form):
    """Format and filters. A value that is not offered is an error: without it more would be exported."""

    format = forms.ChoiceField(label=_("Format"), required=False)
    round = forms.TypedMultipleChoiceField(
        label=_("Rounds"), required=False, coerce=int, widget=forms.CheckboxSelectMultiple
    )
    annotator = forms.ChoiceField(label=_("Annotator"), required=False)
    since = forms.DateField(label=_("From"), required=False, widget=forms.DateInput(attrs={"type": "date"}))
    until = forms.DateField(label=_("To"), required=False, widget=forms.DateInput(attrs={"type": "date"}))
    tag = forms.CharField(label=_("Prompt tag"), required=False, max_length=200)
    category = forms.ChoiceField(label=_("Span or missing category"), required=False)
    split = forms.ChoiceField(label=_("Split"), required=False, choices=[_ANY, *Split.choices])
    machines = forms.BooleanField(label=_("Include AI annotators"), required=False)
    comparisons = forms.RegexField(COMPARISONS, required=False, widget=forms.HiddenInput)

    def __init__(self, data: QueryDict, *, project: Project) -> None:
        super().__init__(data)
        self.project = project
        self._offer("format", [(name, name) for name in WRITERS])
        self._offer("round", [(number, str(number)) for number in rounds_of(project)])
        categories = project.categories.order_by("position", "pk").values_list("key", "label")
        self._offer("category", [_ANY, *categories])
        people = cached(lambda: _annotators(project), "annotators to export", project.pk)
        self._offer("annotator", [_ANY, *people])

    def _offer(self, name: str, choices: list[Any]) -> None:
        field = self.fields[name]
        assert isinstance(field, forms.ChoiceField)  # noqa: S101 - tells the type checker what is declared above
        field.choices = choices

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        try:
            require_known(project=self.project, filters=self.filters)
        except Refusal as refusal:
            self.add_error(refusal.field if refusal.field in self.fields else None, refusal.message)
        return cleaned

    @property
    def format_name(self) -> str:
        """The chosen format; the first one without a choice."""
        return self.cleaned_data.get("format") or next(iter(WRITERS))

    @property
    def comparison_ids(self) -> tuple[int, ...]:
        """The comparisons that were selected in their table; empty for all."""
        named = self.cleaned_data.get("comparisons", "")
        return tuple(int(number) for number in named.split(",") if number)

    @property
    def filters(self) -> ExportFilters:
        """The filters, of the fields that are valid."""
        values = self.cleaned_data
        return ExportFilters(
            rounds=values.get("round") or None,
            machines=values.get("machines", False),
            split=values.get("split", ""),
            annotator=values.get("annotator", ""),
            since=values.get("since"),
            until=values.get("until"),
            tag=values.get("tag", ""),
            category=values.get("category", ""),
            comparisons=self.comparison_ids,
        )


def _annotators(project: Project) -> list[tuple[str, str]]:
    """The annotators of a project under their pseudonyms, by name; AI annotators last."""
    ordered = sorted(who_judged(project), key=lambda user: (user.is_machine, str(user).casefold()))
    return [(str(UUID(str(user.pseudonym))), str(user)) for user in ordered]
