"""Form of a question of the project: from its fields to the record, and back."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django import forms
from django.utils.text import slugify
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from annotation.choices import QuestionKind, QuestionSubject
from annotation.record.questions import CHOSEN_KINDS, Choice, Condition, Question
from annotation.services.projects.project_questions import (
    LONGEST_HELP,
    LONGEST_KEY,
    LONGEST_TEXT,
    LONGEST_UNIT,
    SCALE_POINTS,
)

_LINE = re.compile(r"(?:(?P<key>[\w-]+)\s*=\s*)?(?P<label>.*?)(?:\s*\[(?P<shortcut>\S)\])?")
"""A choice as a line: `key = label [K]`, of which the label alone is enough."""
MOST_LINES = 10_000


class ProjectQuestionForm(forms.Form):
    """A question of the project. The kind, the subject and the key are chosen once."""

    text = forms.CharField(
        max_length=LONGEST_TEXT, label=_("Question"), widget=forms.TextInput(attrs={"autofocus": True})
    )
    kind = forms.ChoiceField(choices=QuestionKind.choices, label=_("Answered by"))
    subject = forms.ChoiceField(choices=QuestionSubject.choices, label=_("Asked of"))
    choices = forms.CharField(
        required=False,
        max_length=MOST_LINES,
        label=_("Choices, or labels of points"),
        widget=forms.Textarea(attrs={"rows": 4}),
        help_text=_(
            "One in a line. A key for the keyboard in brackets at the end: Tax law [T]. "
            "Of a scale the labels of single points: 1 = not at all."
        ),
    )
    first = forms.IntegerField(required=False, initial=1, label=_("Lowest point"))
    last = forms.IntegerField(
        required=False, initial=5, label=_("Highest point"), help_text=_("A scale has 2 to 11 points.")
    )
    unit = forms.CharField(required=False, max_length=LONGEST_UNIT, label=_("Unit"))
    least = forms.FloatField(required=False, label=_("Smallest number"))
    most = forms.FloatField(required=False, label=_("Largest number"))
    help_text = forms.CharField(
        required=False,
        max_length=LONGEST_HELP,
        label=_("Help"),
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text=_("Shown below the question."),
    )
    is_required = forms.BooleanField(required=False, label=_("Required"))
    shown_when = forms.MultipleChoiceField(
        required=False,
        label=_("Show only after one of these answers"),
        widget=forms.CheckboxSelectMultiple,
        help_text=_("None shows it always."),
    )
    categories = forms.MultipleChoiceField(
        required=False,
        label=_("Ask only of spans of these categories"),
        widget=forms.CheckboxSelectMultiple,
        help_text=_("None asks it of every span. A category stands for its sub-categories."),
    )
    key = forms.SlugField(
        required=False,
        max_length=LONGEST_KEY,
        label=_("Key (optional)"),
        help_text=_("Name in exports; made of the question if empty. It stays."),
    )

    def __init__(
        self,
        *args: Any,
        earlier: Sequence[Question] = (),
        changes: Question | None = None,
        used_keys: Sequence[str] = (),
        categories: Sequence[tuple[str, str]] = (),
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.changes = changes
        self._used_keys = used_keys
        deciding = [each for each in earlier if each.kind in CHOSEN_KINDS and not each.is_archived]
        conditions: Any = self.fields["shown_when"]
        conditions.choices = [
            (
                question.text,
                [
                    (f"{question.key}={choice.key}", f"{question.text}: {choice.label or choice.key}")
                    for choice in question.choices
                ],
            )
            for question in deciding
        ]
        if not deciding:
            del self.fields["shown_when"]
        of_categories: Any = self.fields["categories"]
        of_categories.choices = categories
        if not categories or (changes is not None and changes.subject != "span"):
            del self.fields["categories"]
        if changes is not None:
            for name in ("kind", "subject", "key"):
                del self.fields[name]

    @property
    def kind_chosen(self) -> str:
        """The kind as it is now, for the fields that belong to it."""
        if self.changes is not None:
            return str(self.changes.kind)
        return str(self.data.get("kind") or self.initial.get("kind") or QuestionKind.CHOICE)

    @property
    def main_fields(self) -> Iterator[forms.BoundField]:
        """The fields in the order of the page, without the conditions, which are folded away."""
        return (field for field in self if field.name not in ("shown_when", "categories"))

    @property
    def question(self) -> Question:
        """The question as a record. Only after `is_valid()`."""
        values = self.cleaned_data
        kind = self.kind_chosen
        condition = self._condition(values.get("shown_when") or [])
        return Question(
            key=self.changes.key if self.changes else self._key(values),
            kind=kind,
            subject=self.changes.subject if self.changes else values["subject"],
            text=values["text"],
            help_text=values["help_text"].replace("\r\n", "\n"),
            is_required=values["is_required"],
            choices=values["choices"] if kind in CHOSEN_KINDS else (),
            unit=values["unit"] if kind == "number" else "",
            least=values["least"] if kind == "number" else None,
            most=values["most"] if kind == "number" else None,
            shown_when=condition,
            categories=self._categories(values),
        )

    def clean(self) -> dict[str, Any]:
        """Read the choices as their kind has them, and derive the key."""
        values: dict[str, Any] = super().clean() or self.cleaned_data
        if "choices" in values:
            lines = values["choices"]
            try:
                if self.kind_chosen == "scale":
                    values["choices"] = _points(values.get("first"), values.get("last"), lines)
                else:
                    before = self.changes.choices if self.changes else ()
                    values["choices"] = _choices(lines, before)
            except ValueError as error:
                self.add_error("choices", str(error))
        decided = {text.partition("=")[0] for text in values.get("shown_when") or []}
        if len(decided) > 1:
            self.add_error("shown_when", gettext("Choose answers to one question alone."))
        if self.changes is None and values.get("text") and not self._key(values):
            self.add_error("key", gettext("The question has no letter for a key. Enter one, such as tone."))
        return values

    def _key(self, values: Mapping[str, Any]) -> str:
        if given := values.get("key"):
            return str(given)
        base = slugify(str(values["text"]))[: LONGEST_KEY - 4].strip("-_")
        key: str = base
        number = 1
        while base and key in self._used_keys:
            number += 1
            key = f"{base}-{number}"
        return key

    def _categories(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the chosen categories; none where the question is not about spans: they are hidden then."""
        subject = self.changes.subject if self.changes else values["subject"]
        return tuple(values.get("categories") or ()) if subject == "span" else ()

    @staticmethod
    def _condition(chosen: Sequence[str]) -> Condition | None:
        if not chosen:
            return None
        keys = tuple(text.partition("=")[2] for text in chosen)
        return Condition(question=chosen[0].partition("=")[0], values=keys)


def _choices(lines: str, before: Sequence[Choice]) -> tuple[Choice, ...]:
    """Return the choices that lines name. One whose label stays keeps its key."""
    known = {choice.label: choice.key for choice in before}
    made: list[Choice] = []
    used: set[str] = set()
    for number, line in enumerate(filter(None, map(str.strip, lines.splitlines())), start=1):
        match = _LINE.fullmatch(line)
        label = match["label"].strip() if match else ""
        if match is None or not label:
            raise ValueError(gettext("Line %(number)s has no label.") % {"number": number})
        key = match["key"] or known.get(label) or slugify(label)[:LONGEST_KEY] or f"choice-{number}"
        if key in used and not match["key"]:
            key = f"{key[: LONGEST_KEY - 4]}-{number}"
        used.add(key)
        made.append(Choice(key=key, label=label, shortcut=match["shortcut"] or ""))
    return tuple(made)


def _points(first: int | None, last: int | None, lines: str) -> tuple[Choice, ...]:
    """Return the points of a scale, with the labels that lines give to some of them."""
    low, high = 1 if first is None else first, 5 if last is None else last
    least, most = SCALE_POINTS
    if not least <= high - low + 1 <= most:
        raise ValueError(
            gettext("A scale has %(least)s to %(most)s points.") % {"least": least, "most": most}
        )
    labels: dict[str, tuple[str, str]] = {}
    for line in filter(None, map(str.strip, lines.splitlines())):
        match = _LINE.fullmatch(line)
        key = match["key"] if match else None
        if match is None or key is None or not re.fullmatch(r"-?\d+", key) or not low <= int(key) <= high:
            raise ValueError(
                gettext("“%(line)s” names no point. Write the point, = and its label: %(low)s = never.")
                % {"line": line[:40], "low": low}
            )
        labels[str(int(key))] = (match["label"].strip(), match["shortcut"] or "")
    return tuple(
        Choice(key=str(number), label=label, shortcut=shortcut)
        for number in range(low, high + 1)
        for label, shortcut in [labels.get(str(number), ("", ""))]
    )


def initial_of_question(question: Question) -> dict[str, Any]:
    """Return the first values of the form of a question."""
    is_scale = question.kind == "scale"
    condition = question.shown_when
    return {
        "text": question.text,
        "kind": question.kind,
        "subject": question.subject,
        "choices": "\n".join(
            _line(choice, is_scale=is_scale) for choice in question.choices if _named(choice)
        ),
        "first": int(question.choices[0].key) if is_scale else 1,
        "last": int(question.choices[-1].key) if is_scale else 5,
        "unit": question.unit,
        "least": question.least,
        "most": question.most,
        "help_text": question.help_text,
        "is_required": question.is_required,
        "categories": list(question.categories),
        "shown_when": [f"{condition.question}={value}" for value in condition.values] if condition else [],
    }


def _named(choice: Choice) -> bool:
    return bool(choice.label or choice.shortcut)


def _line(choice: Choice, *, is_scale: bool) -> str:
    is_derived = not is_scale and choice.key == slugify(choice.label)
    line = choice.label if is_derived else f"{choice.key} = {choice.label}"
    return f"{line} [{choice.shortcut}]" if choice.shortcut else line
