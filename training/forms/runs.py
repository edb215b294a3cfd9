"""Form of the filters of a project's runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from training.choices import CheckpointKind, Method, RunState
from training.selectors.run_table import RunFilters


class RunFilterForm(forms.Form):
    """Filters of runs. Unreadable values count as left out."""

    text = forms.CharField(
        required=False,
        max_length=200,
        label=_("Name or notes"),
        widget=forms.TextInput(attrs={"type": "search"}),
    )
    kind = forms.ChoiceField(
        required=False,
        label=_("Kind"),
        choices=[
            ("", _("All kinds")),
            (CheckpointKind.REWARD, CheckpointKind.REWARD.label),
            (CheckpointKind.POLICY, CheckpointKind.POLICY.label),
        ],
    )
    method = forms.ChoiceField(
        required=False, label=_("Method"), choices=[("", _("All methods")), *Method.choices]
    )
    state = forms.ChoiceField(
        required=False, label=_("State"), choices=[("", _("All states")), *RunState.choices]
    )
    round = forms.TypedChoiceField(required=False, label=_("Round"), coerce=int, empty_value=None)
    tag = forms.ChoiceField(required=False, label=_("Tag"))

    def __init__(self, data: Mapping[str, Any], *, rounds: Sequence[int], tags: Sequence[str]) -> None:
        super().__init__(data)
        self._offer("round", [("", _("All rounds")), *((str(number), str(number)) for number in rounds)])
        self._offer("tag", [("", _("All tags")), *((tag, tag) for tag in tags)])
        if not rounds:
            del self.fields["round"]
        if not tags:
            del self.fields["tag"]
        self.is_valid()

    def _offer(self, name: str, choices: Sequence[tuple[str, Any]]) -> None:
        field = self.fields[name]
        assert isinstance(field, forms.ChoiceField)  # noqa: S101 - declared above
        field.choices = choices

    @property
    def filters(self) -> RunFilters:
        """The filters that are meant."""
        return RunFilters(**{name: value for name, value in self.cleaned_data.items() if value})

    @property
    def query(self) -> dict[str, str]:
        """The filters as a part of an address."""
        return {name: str(value) for name, value in self.cleaned_data.items() if value}
