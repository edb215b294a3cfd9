"""Forms of Compare and of arenas, with the one form of a vote."""

from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib.auth.models import AnonymousUser
from django.utils.translation import gettext_lazy as _

from annotation.choices import Verdict
from annotation.forms import offer
from annotation.models import Project, Prompt, User
from annotation.services.judgments.checks import Incomplete
from training.choices import CheckpointKind
from training.models import Checkpoint, PromptSet
from training.selectors.projects import checkpoints_of, comparable_checkpoints, responding_checkpoints
from training.selectors.prompt_sets import progress_on
from training.services.arenas import MOST_PROMPTS
from training.services.prompt_sets import LONGEST_NAME
from training.services.side_by_side import SharedSampling
from training.services.voting import VOTES, VoteChoice

LONGEST_PROMPT = 8000
DEFAULT_TOP_P = 0.95
SIDES = ("left", "right", "third", "fourth")
"""Fields of the checkpoints."""


def _checkpoint_field(
    label: Any, *, required: bool, empty: Any = None
) -> "forms.ModelChoiceField[Checkpoint]":
    return forms.ModelChoiceField(
        Checkpoint.objects.none(), to_field_name="name", required=required, empty_label=empty, label=label
    )


class SamplingForm(forms.Form):
    """The fields of every form that has checkpoints answer."""

    temperature = forms.FloatField(
        initial=0.7,
        min_value=0,
        max_value=2,
        label=_("Temperature"),
        help_text=_("0 always picks the most likely token."),
    )
    max_tokens = forms.IntegerField(initial=256, min_value=1, max_value=1024, label=_("Max. tokens"))


class PlaygroundForm(SamplingForm):
    """The sampling and the system prompt of a side by side."""

    top_p = forms.FloatField(
        initial=DEFAULT_TOP_P,
        min_value=0.01,
        max_value=1,
        required=False,
        label=_("Top p"),
        help_text=_("1 samples from all tokens."),
    )
    seed = forms.IntegerField(
        initial=0,
        min_value=0,
        max_value=2**31 - 1,
        label=_("Seed"),
        help_text=_("The same seed gives the same responses."),
    )
    system = forms.CharField(
        required=False,
        max_length=LONGEST_PROMPT,
        label=_("System prompt"),
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text=_("Empty keeps the prompt's own."),
    )
    unblinded = forms.BooleanField(
        required=False,
        label=_("Show names before the vote"),
        help_text=_(
            "Otherwise names, scores and differences appear after your vote, and the order is random. "
            "An unblinded vote is left out of training, win rates and the leaderboard."
        ),
    )

    @property
    def sampling(self) -> SharedSampling:
        """Return the sampling settings."""
        top_p = self.cleaned_data["top_p"]
        return SharedSampling(
            temperature=self.cleaned_data["temperature"],
            max_tokens=self.cleaned_data["max_tokens"],
            top_p=DEFAULT_TOP_P if top_p is None else top_p,
        )


class AgainForm(PlaygroundForm):
    """The same checkpoints and the same chat, with other settings."""

    field_order = ("system", "temperature", "top_p", "seed", "max_tokens", "unblinded")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"auto_id": "again_%s", **kwargs})
        self.fields["seed"].required = False
        self.fields["seed"].initial = None
        self.fields["seed"].help_text = _("Empty draws a new one.")

    @property
    def first_error(self) -> str:
        """The first message of an invalid form, with the label of its field."""
        name, errors = next(iter(self.errors.items()))
        return f"{self.fields[name].label}: {errors[0]}"


class CompareForm(PlaygroundForm):
    """The checkpoints, the prompt and the sampling of a side by side."""

    field_order = (
        *(*SIDES, "prompt", "text", "system", "reward", "temperature", "top_p", "seed", "max_tokens"),
        *("unblinded", "prompt_set"),
    )

    left = _checkpoint_field(_("First"), required=True)
    right = _checkpoint_field(_("Second"), required=True)
    third = _checkpoint_field(_("Third"), required=False, empty=_("none"))
    fourth = _checkpoint_field(_("Fourth"), required=False, empty=_("none"))
    prompt = forms.ModelChoiceField(
        Prompt.objects.none(),
        required=False,
        label=_("Prompt of the project"),
        empty_label=_("Custom prompt"),
    )
    text = forms.CharField(
        required=False,
        max_length=LONGEST_PROMPT,
        label=_("Or type one"),
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text=_("Replaces the prompt chosen above."),
    )
    reward = _checkpoint_field(_("Scored by"), required=False, empty=_("no reward model"))
    prompt_set = forms.ModelChoiceField(PromptSet.objects.none(), required=False, widget=forms.HiddenInput)
    next_prompt: Prompt | None = None
    """The next prompt of the chosen set."""

    def __init__(self, *args: Any, project: Project, user: User | AnonymousUser, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        writers = comparable_checkpoints(project, user)
        rewards = checkpoints_of(project, writing=False)
        prompts = project.prompts.order_by("pk")
        sources: list[tuple[str, Any]] = [(name, writers) for name in SIDES]
        sources += [("reward", rewards), ("prompt", prompts), ("prompt_set", project.prompt_sets.all())]
        for name, choices in sources:
            offer(self, name, choices)
        self._first_choices(list(checkpoints_of(project, writing=True)), list(rewards), list(writers))

    def _first_choices(
        self, writers: list[Checkpoint], rewards: list[Checkpoint], others: list[Checkpoint]
    ) -> None:
        """The starter beside the newest policy, scored by the newest reward model.

        Always two different models, of other projects where this one has fewer.
        """
        by_age = sorted(writers, key=lambda writer: -writer.pk)
        starter = next((writer for writer in writers if writer.kind == CheckpointKind.STARTER), None)
        first = starter or next(iter([*by_age[1:], *by_age, *others]), None)
        second = next((writer for writer in [*by_age, *others] if writer != first), None)
        self.fields["left"].initial = first.name if first else None
        self.fields["right"].initial = second.name if second else None
        if second is None:
            # A browser would otherwise choose the first one twice.
            self.fields["right"].empty_label = _("no other checkpoint")  # type: ignore[attr-defined]
        self.fields["reward"].initial = max(rewards, key=lambda reward: reward.pk).name if rewards else None

    def clean(self) -> dict[str, Any]:
        """One prompt there must be, and each checkpoint once."""
        values = super().clean() or {}
        asks = values.get("text", "").strip() or values.get("prompt") or values.get("prompt_set")
        if not asks and not self.errors:
            self.add_error("text", _("Choose a prompt of the project or type one."))
        chosen = [values[name] for name in SIDES if values.get(name)]
        if len(set(chosen)) < len(chosen):
            self.add_error("right", _("Choose different checkpoints."))
        if values.get("prompt_set") and not self.errors:
            progress = progress_on(values["prompt_set"], chosen)
            self.next_prompt = progress.next
            if not progress.total:
                self.add_error(None, _("This prompt set is empty. Add prompts to it."))
            elif self.next_prompt is None:
                self.add_error(None, _("These checkpoints were compared on every prompt of the set."))
        return values

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """Those that answer, in their order."""
        return [self.cleaned_data[name] for name in SIDES if self.cleaned_data[name]]

    @property
    def question(self) -> Prompt | str:
        """Return the question: the next of the set, else what was typed, else the chosen prompt."""
        if self.next_prompt is not None:
            return self.next_prompt
        chosen: Prompt | None = self.cleaned_data["prompt"]
        typed: str = self.cleaned_data["text"].strip()
        return typed or chosen or ""


class ArenaForm(SamplingForm):
    """A new arena."""

    field_order = ("name", "checkpoints", "prompts", "temperature", "max_tokens")

    name = forms.CharField(
        max_length=120,
        label=_("Name"),
        help_text=_("Shown to voters: do not name the models."),
    )
    checkpoints = forms.ModelMultipleChoiceField(
        Checkpoint.objects.none(),
        to_field_name="name",
        label=_("Checkpoints"),
        widget=forms.CheckboxSelectMultiple,
        help_text=_("Two to eight. Every pair is shown equally often."),
    )
    prompts = forms.IntegerField(
        initial=20,
        min_value=1,
        max_value=MOST_PROMPTS,
        label=_("Held-out prompts"),
        help_text=_("Maximum number of prompts, none of them used for training."),
    )
    for_guests = forms.BooleanField(
        required=False,
        label=_("Guests may vote"),
        help_text=_("Anyone with the link, without an account. Their votes are counted apart."),
    )
    is_conversation = forms.BooleanField(
        required=False,
        label=_("Voters write their own messages"),
        help_text=_("A conversation with two models in place of held-out prompts; every turn is a vote."),
    )
    most_votes = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=1_000_000,
        label=_("Max. votes"),
        help_text=_("Empty for no limit."),
    )
    expires_at = forms.DateTimeField(
        required=False,
        label=_("Ends at"),
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}),
        help_text=_("Empty for no end date."),
    )

    def __init__(self, *args: Any, project: Project, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        offer(self, "checkpoints", responding_checkpoints(project).order_by("-pk"))


class VoteForm(forms.Form):
    """A vote on responses beside each other: the better of two, a ranking, or why there is no order."""

    vote = forms.ChoiceField(
        error_messages={"required": Incomplete.PAIR.value, "invalid_choice": Incomplete.PAIR.value},
        widget=forms.HiddenInput,
    )

    def __init__(self, *args: Any, positions: Sequence[int], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.positions = positions
        vote = self.fields["vote"]
        assert isinstance(vote, forms.ChoiceField)  # noqa: S101 - declared above
        is_pair = len(positions) == 2
        vote.choices = [(name, name) for name in VOTES if is_pair or VOTES[name].verdict != Verdict.RANKED]
        if is_pair:
            return
        vote.choices = [*vote.choices, (Verdict.RANKED, Verdict.RANKED.label)]
        for position in positions:
            self.fields[f"rank_{position}"] = forms.TypedChoiceField(
                choices=[("", "–"), *((rank, str(rank)) for rank in range(1, len(positions) + 1))],
                coerce=int,
                empty_value=None,
                required=False,
                label=_("Response %(number)s") % {"number": position},
            )
        self.fields["partial"] = forms.BooleanField(required=False, label=_("Leave the rest unordered"))

    def clean(self) -> dict[str, Any]:
        """Refuse a ranking that leaves responses out by oversight."""
        values: dict[str, Any] = super().clean() or {}
        ranks = [values.get(f"rank_{position}") for position in self.positions]
        left_out = any(ranks) and not all(ranks)
        if values.get("vote") == Verdict.RANKED and left_out and not values.get("partial"):
            raise forms.ValidationError(_("Rank every response, or leave the rest unordered."))
        return values

    @property
    def decision(self) -> VoteChoice:
        """The vote of a valid form."""
        vote: str = self.cleaned_data["vote"]
        if vote in VOTES:
            return VOTES[vote]
        ranks = {position: self.cleaned_data[f"rank_{position}"] for position in self.positions}
        return VoteChoice(Verdict.RANKED, {place: rank for place, rank in ranks.items() if rank is not None})

    @property
    def first_error(self) -> str:
        """The first message of an invalid form."""
        return str(next(iter(self.errors.values()))[0])


class PromptSetForm(forms.Form):
    """The name of a prompt set."""

    name = forms.CharField(max_length=LONGEST_NAME, label=_("Name"))
