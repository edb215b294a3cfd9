"""Forms of the training pages."""

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from annotation.models import Project, Prompt
from training.chats import chat_of
from training.choices import CheckpointKind
from training.models import Checkpoint
from training.selectors import checkpoints_of

_PROMPTS_LISTED = 300
LONGEST_PROMPT = 8000


class CompareForm(forms.Form):
    """Which two checkpoints answer what, and how they sample."""

    left = forms.ModelChoiceField(
        Checkpoint.objects.none(), to_field_name="name", empty_label=None, label=_("Left")
    )
    right = forms.ModelChoiceField(
        Checkpoint.objects.none(), to_field_name="name", empty_label=None, label=_("Right")
    )
    reward = forms.ModelChoiceField(
        Checkpoint.objects.none(),
        to_field_name="name",
        required=False,
        label=_("Scored by"),
        empty_label=_("no reward model"),
    )
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
        help_text=_("The same seed gives the same answers."),
    )
    max_tokens = forms.IntegerField(
        initial=256, min_value=1, max_value=1024, label=_("Length"), help_text=_("At most this many tokens.")
    )

    def __init__(self, *args: Any, project: Project, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        writers = checkpoints_of(project, writing=True)
        rewards = checkpoints_of(project, writing=False)
        prompts = project.prompts.order_by("pk")
        for name, found in (("left", writers), ("right", writers), ("reward", rewards), ("prompt", prompts)):
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
        newest = max(writers, key=lambda one: one.pk, default=None)
        self.fields["left"].initial = starter.name if starter else None
        self.fields["right"].initial = newest.name if newest else None
        self.fields["reward"].initial = max(rewards, key=lambda one: one.pk).name if rewards else None

    def clean(self) -> dict[str, Any]:
        """One prompt there must be."""
        values = super().clean() or {}
        if not values.get("text", "").strip() and values.get("prompt") is None and not self.errors:
            self.add_error("text", _("Choose a prompt of the project or type one."))
        return values

    @property
    def messages(self) -> list[dict[str, str]]:
        """The chat that both checkpoints answer."""
        if text := self.cleaned_data["text"].strip():
            return [{"role": "user", "content": text}]
        chosen: Prompt = self.cleaned_data["prompt"]
        return chat_of(chosen)
