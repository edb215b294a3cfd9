"""The form of a new prompt."""

import re
from typing import Any

from django import forms
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from annotation.models import Prompt
from annotation.services.bulk.prompts import LONGEST_TAG, MOST_TAGS, TAG
from annotation.text.chat import MOST_TURNS

_LONGEST = 100_000


class PromptForm(forms.Form):
    """A prompt of one turn, with the turns before it where it was taken from another prompt."""

    system = forms.CharField(
        label=_("System prompt"),
        required=False,
        max_length=_LONGEST,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 2}),
    )
    question = forms.CharField(
        label=_("Prompt"), max_length=_LONGEST, strip=False, widget=forms.Textarea(attrs={"rows": 6})
    )
    reference = forms.CharField(
        label=_("Reference response"),
        required=False,
        max_length=_LONGEST,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 3}),
    )
    tags = forms.CharField(label=_("Tags"), required=False, max_length=1_000, help_text=_("With commas."))

    def __init__(self, *args: object, copied: Prompt | None = None, **options: object) -> None:
        self.copied = copied
        if copied is not None:
            options["initial"] = _initial(copied)
        super().__init__(*args, **options)  # type: ignore[arg-type]

    def clean_question(self) -> str:
        """Refuse a prompt of spaces."""
        question: str = self.cleaned_data["question"]
        if not question.strip():
            raise forms.ValidationError(gettext("Enter a prompt."))
        return question

    def clean(self) -> dict[str, Any]:
        """Refuse a chat of more messages than a prompt has; the turns are those of the copied prompt."""
        # With a system prompt and the last turn.
        if len(self.turns_before) + 2 > MOST_TURNS:
            raise forms.ValidationError(
                gettext("A prompt has at most %(most)s messages.") % {"most": MOST_TURNS},
                code="too_many_turns",
            )
        return super().clean() or self.cleaned_data

    def clean_tags(self) -> list[str]:
        """Return the tags, each once; refuse one that tags cannot be."""
        tags = list(dict.fromkeys(tag.strip() for tag in self.cleaned_data["tags"].split(",") if tag.strip()))
        wrong = next((tag for tag in tags if not re.fullmatch(TAG, tag)), None)
        if wrong is not None or len(tags) > MOST_TAGS:
            raise forms.ValidationError(
                gettext("Enter at most %(most)s tags of up to %(longest)s letters, digits and dashes.")
                % {"most": MOST_TAGS, "longest": LONGEST_TAG}
            )
        return tags

    @property
    def messages(self) -> list[dict[str, str]]:
        """Return the chat: system prompt, the turns before of the copied prompt, the new last turn."""
        system, question = self.cleaned_data["system"], self.cleaned_data["question"]
        first = [{"role": "system", "content": system}] if system.strip() else []
        return [*first, *self.turns_before, {"role": "user", "content": question}]

    @property
    def turns_before(self) -> list[dict[str, str]]:
        """Return the turns between system prompt and last turn of the prompt that is copied."""
        if self.copied is None:
            return []
        return [turn for turn in self.copied.messages[:-1] if turn["role"] != "system"]

    @property
    def parts(self) -> dict[str, Any]:
        """Return the fields of the new prompt. Passages are those of the prompt that is copied."""
        reference = self.cleaned_data["reference"]
        return {
            "messages": self.messages,
            "context": self.copied.context if self.copied else [],
            "references": [reference] if reference.strip() else [],
            "tags": self.cleaned_data["tags"],
        }


def _initial(prompt: Prompt) -> dict[str, str]:
    first = prompt.messages[0]
    return {
        "system": first["content"] if first["role"] == "system" else "",
        "question": prompt.last_question,
        "reference": prompt.references[0] if prompt.references else "",
        "tags": ", ".join(map(str, prompt.tags)),
    }
