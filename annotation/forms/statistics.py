"""Form of the statistics' selection, which a link can fill, too."""

from typing import Any

from django import forms
from django.http import QueryDict
from django.utils.translation import gettext_lazy as _

from annotation.agreement.records import Selection
from annotation.choices import Shown
from annotation.forms import offer
from annotation.models import Comparison, Project
from annotation.selectors.cached_counts import cached
from annotation.selectors.judged import who_judged

Choices = list[tuple[str, Any]]


class SelectionForm(forms.Form):
    """Round, category and annotators. An unknown value selects nothing, as an old link may hold one."""

    round = forms.ChoiceField(label=_("Round"), required=False)
    category = forms.ChoiceField(label=_("Span category"), required=False)
    annotator = forms.ChoiceField(label=_("Annotator"), required=False)
    other = forms.ChoiceField(label=_("and annotator"), required=False)

    def __init__(self, data: QueryDict, *, project: Project) -> None:
        self.people = people_of(project)
        categories = project.categories.order_by("position", "id").values_list("pk", "label")
        options = {
            "round": [(str(number), str(number)) for number in rounds_of(project)],
            "category": [(str(pk), label) for pk, label in categories],
            "annotator": [(str(pk), name) for pk, name in self.people.items()],
            "other": [(str(pk), name) for pk, name in self.people.items()],
        }
        known = {
            name: data[name]
            for name, choices in options.items()
            if data.get(name) in {value for value, _label in choices}
        }
        super().__init__(data={**self._more(data), **known})
        self._choose("round", _("all rounds"), options["round"])
        self._choose("category", _("all categories"), options["category"])
        self._choose("annotator", _("everyone"), options["annotator"])
        self._choose("other", _("everyone"), options["other"])
        self.full_clean()

    def _choose(self, name: str, nothing: Any, choices: Choices) -> None:
        offer(self, name, [("", nothing), *choices])

    def _more(self, data: QueryDict) -> dict[str, str]:
        return {}

    @property
    def selection(self) -> Selection:
        return Selection(
            round_number=self._number("round"),
            category_id=self._number("category"),
            annotator_id=self._number("annotator"),
            other_id=self._number("other"),
        )

    def _number(self, name: str) -> int | None:
        value: str = self.cleaned_data.get(name) or ""
        return int(value) if value else None


class ItemsForm(SelectionForm):
    """The same, and which comparisons of it."""

    show = forms.ChoiceField(label=_("Comparisons"), choices=Shown.choices, required=False)
    field_order = ["show", "round", "category", "annotator", "other"]

    def _more(self, data: QueryDict) -> dict[str, str]:
        shown = data.get("show", "")
        return {"show": shown if shown in Shown.values else Shown.JUDGED}

    @property
    def shown(self) -> Shown:
        """Return the comparisons to show; all judged ones by default."""
        return Shown(self.cleaned_data.get("show") or Shown.JUDGED)


def rounds_of(project: Project) -> list[int]:
    """The rounds for which there are comparisons; those of a large project may be some seconds old."""
    rounds = Comparison.objects.filter(project=project).order_by("round_number")
    numbers = rounds.values_list("round_number", flat=True).distinct()
    return cached(lambda: list(numbers), "rounds of comparisons", project.pk)


def people_of(project: Project) -> dict[int, str]:
    """Return the annotators of a project, by name; those of a large one may be some minutes old."""
    return cached(lambda: _people(project), "people who judged", project.pk)


def _people(project: Project) -> dict[int, str]:
    people = who_judged(project).filter(is_machine=False)
    return dict(sorted(((user.pk, str(user)) for user in people), key=lambda entry: entry[1].casefold()))
