"""Forms of the training pages."""

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from annotation.choices import Verdict
from annotation.models import Project, Prompt
from training.choices import CheckpointKind
from training.models import Checkpoint, SideBySide
from training.selectors import checkpoints_of
from training.services.side_by_side import Sampling

_PROMPTS_LISTED = 300
LONGEST_PROMPT = 8000
_BEST = "best-"
_SAID = (Verdict.RANKED, Verdict.EQUAL, Verdict.BOTH_GOOD, Verdict.BOTH_BAD, Verdict.CANNOT_JUDGE)
_SIDES = ("left", "right", "third", "fourth")


def _checkpoint_field(
    label: Any, *, required: bool, empty: Any = None
) -> "forms.ModelChoiceField[Checkpoint]":
    return forms.ModelChoiceField(
        Checkpoint.objects.none(), to_field_name="name", required=required, empty_label=empty, label=label
    )


class CompareForm(forms.Form):
    """Which checkpoints answer what, and how they sample."""

    left = _checkpoint_field(_("First"), required=True)
    right = _checkpoint_field(_("Second"), required=True)
    third = _checkpoint_field(_("Third"), required=False, empty=_("none"))
    fourth = _checkpoint_field(_("Fourth"), required=False, empty=_("none"))
    prompt = forms.ModelChoiceField(
        Prompt.objects.none(),
        required=False,
        label=_("Prompt of the project"),
        empty_label=_("the typed one"),
    )
    text = forms.CharField(
        required=False,
        max_length=LONGEST_PROMPT,
        label=_("Or type one"),
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text=_("What is typed here goes before the prompt chosen above."),
    )
    reward = _checkpoint_field(_("Scored by"), required=False, empty=_("no reward model"))
    temperature = forms.FloatField(
        initial=0.7,
        min_value=0,
        max_value=2,
        label=_("Temperature"),
        help_text=_("0 always takes the likeliest token."),
    )
    seed = forms.IntegerField(
        initial=0,
        min_value=0,
        max_value=2**31 - 1,
        label=_("Seed"),
        help_text=_("The same for all; it gives the same answers again."),
    )
    max_tokens = forms.IntegerField(
        initial=256, min_value=1, max_value=1024, label=_("Length"), help_text=_("At most this many tokens.")
    )
    unblinded = forms.BooleanField(
        required=False,
        label=_("Show names before the vote"),
        help_text=_(
            "Otherwise names, scores and differences appear after your vote, and the order is random. "
            "An unblinded vote is left out of training, win rates and the leaderboard."
        ),
    )

    def __init__(self, *args: Any, project: Project, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        writers = checkpoints_of(project, writing=True)
        rewards = checkpoints_of(project, writing=False)
        prompts = project.prompts.order_by("pk")
        sources: list[tuple[str, Any]] = [(name, writers) for name in _SIDES]
        for name, found in (*sources, ("reward", rewards), ("prompt", prompts)):
            field = self.fields[name]
            assert isinstance(field, forms.ModelChoiceField)  # noqa: S101 - declared above
            field.queryset = found
        # A project may have more prompts than a list on a page can bear; any of them is accepted.
        self.fields["prompt"].widget.choices = [
            ("", _("the typed one")),
            *((prompt.pk, str(prompt)) for prompt in prompts[:_PROMPTS_LISTED]),
        ]
        self._first_choices(list(writers), list(rewards))

    def _first_choices(self, writers: list[Checkpoint], rewards: list[Checkpoint]) -> None:
        """The starter beside the newest policy, scored by the newest reward model."""
        starter = next((one for one in writers if one.kind == CheckpointKind.STARTER), None)
        newest = max((one for one in writers if one != starter), key=lambda one: one.pk, default=None)
        self.fields["left"].initial = starter.name if starter else None
        self.fields["right"].initial = newest.name if newest else None
        self.fields["reward"].initial = max(rewards, key=lambda one: one.pk).name if rewards else None

    def clean(self) -> dict[str, Any]:
        """One prompt there must be, and each checkpoint once."""
        values = super().clean() or {}
        if not values.get("text", "").strip() and values.get("prompt") is None and not self.errors:
            self.add_error("text", _("Choose a prompt of the project or type one."))
        chosen = [values[name] for name in _SIDES if values.get(name)]
        if len(set(chosen)) < len(chosen):
            self.add_error("right", _("Choose different checkpoints."))
        return values

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """Those that answer, in their order."""
        return [self.cleaned_data[name] for name in _SIDES if self.cleaned_data[name]]

    @property
    def question(self) -> Prompt | str:
        """What they answer: what was typed, else the chosen prompt."""
        chosen: Prompt | None = self.cleaned_data["prompt"]
        typed: str = self.cleaned_data["text"].strip()
        return typed or chosen or ""

    @property
    def sampling(self) -> Sampling:
        """How they sample."""
        return Sampling(
            temperature=self.cleaned_data["temperature"], max_tokens=self.cleaned_data["max_tokens"]
        )


class BesideVoteForm(forms.Form):
    """A vote on answers beside each other: the best first, or why there is no order."""

    said = forms.ChoiceField(error_messages={"required": _("Say which answer is better, or why none is.")})

    def __init__(self, *args: Any, shown: SideBySide, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.places = [answer.position for answer in shown.answers.all()]
        said = self.fields["said"]
        assert isinstance(said, forms.ChoiceField)  # noqa: S101 - declared above
        best = [(f"{_BEST}{place}", str(place)) for place in self.places] if len(self.places) == 2 else []
        said.choices = [*best, *((verdict, verdict.label) for verdict in _SAID)]
        for place in self.places:
            self.fields[f"rank_{place}"] = forms.TypedChoiceField(
                choices=[("", "–"), *((rank, str(rank)) for rank in range(1, len(self.places) + 1))],
                coerce=int,
                empty_value=None,
                required=False,
                label=_("Answer %(number)s") % {"number": place},
            )

    @property
    def verdict(self) -> Verdict:
        """What was said, the winner apart."""
        said: str = self.cleaned_data["said"]
        return Verdict.RANKED if said.startswith(_BEST) else Verdict(said)

    @property
    def ranks(self) -> dict[int, int]:
        """Position → rank."""
        said: str = self.cleaned_data["said"]
        if said.startswith(_BEST):
            return {place: 1 if said == f"{_BEST}{place}" else 2 for place in self.places}
        told = {place: self.cleaned_data.get(f"rank_{place}") for place in self.places}
        return {place: rank for place, rank in told.items() if rank is not None}
