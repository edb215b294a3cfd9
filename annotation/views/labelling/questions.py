"""The project's questions on the labelling screen, and in the preview of one that is edited."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.template.loader import render_to_string
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from annotation.forms.judgment import OF_SPAN, question_field
from annotation.record.judgment import COMPARISON, AnswerPart, Target
from annotation.record.questions import Question, Targets, deciding_target, shown_places, value_from_text
from annotation.services.judgments.checks import expected_answer
from annotation.text.rendering import attributes

_SHORT_SCALE = 7
"""Up to so many points without a label stand in a row as narrow steps."""


@dataclass(frozen=True, slots=True)
class OptionOnScreen:
    """A choice, or a point of a scale."""

    key: str
    label: str
    shortcut: str
    is_chosen: bool

    @property
    def attributes(self) -> SafeString:
        """Attributes of the radio button or check box."""
        return attributes(value=self.key, data_shortcut=self.shortcut or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionOnScreen:
    """A question, asked of the comparison, one response, a step or a span, with what was entered."""

    question: Question
    field: str
    values: Sequence[str] = ()
    order: int
    target: Target = COMPARISON
    """With the token of a response as its completion."""
    response: str = ""
    """Words about the response or the step; empty for the comparison, and for spans."""
    decided_by: str = ""
    """Name of the field whose choice shows this question; empty where it is always shown."""
    is_shown: bool = True
    is_invalid: bool = False
    is_repeated: bool = False

    @property
    def element(self) -> str:
        """Return the id of its element."""
        return self.field.replace(".", "-")

    @property
    def is_steps(self) -> bool:
        """Return True for a scale whose points are shown as steps."""
        return self.question.kind == "scale"

    @property
    def has_options(self) -> bool:
        return bool(self.question.choices)

    @property
    def options(self) -> list[OptionOnScreen]:
        """Return the choices or the points."""
        return [
            OptionOnScreen(choice.key, choice.label, choice.shortcut, choice.key in self.values)
            for choice in self.question.choices
        ]

    @property
    def ends(self) -> tuple[str, str]:
        """Return the labels of the lowest and the highest point."""
        first, *_rest, last = self.question.choices
        return first.label, last.label

    @property
    def value(self) -> str:
        """Return the text of a field that is typed."""
        return self.values[0] if self.values else ""

    @property
    def expected(self) -> str:
        """Return the values that answer it, in words."""
        return "" if self.question.kind in ("choice", "choices", "text") else expected_answer(self.question)

    @property
    def attributes(self) -> SafeString:
        """Attributes that label-questions.js reads."""
        condition = self.question.shown_when
        return attributes(
            id=self.element,
            data_question=self.question.key,
            data_kind=self.question.kind,
            data_order=self.order,
            data_field=self.field,
            data_required=self.question.is_required,
            data_shown_by=self.decided_by or None,
            data_shown_values=json.dumps(condition.values) if condition else None,
            data_categories=json.dumps(self.question.categories) if self.question.categories else None,
            data_least=self.question.least,
            data_most=self.question.most,
            data_expected=self.expected or None,
            data_off=not self.is_shown,
            data_invalid=self.is_invalid,
            data_repeated=self.is_repeated,
        )


def questions_on_screen(
    questions: Sequence[Question],
    entered: Mapping[str, Sequence[str]],
    tokens: Mapping[str, str],
    steps: Mapping[str, Sequence[int]] | None = None,
    *,
    is_invalid: bool = False,
    repeated: Collection[str] = (),
) -> list[QuestionOnScreen]:
    """Return every place where a question is asked, in order; those about spans are in the editor of a span.

    entered: name of a field → its values. tokens: token of a response → words about it. steps: token → the
    steps that the agent took.
    """
    targets = Targets(completions=list(tokens), steps=steps or {})
    asked = [question for question in questions if question.subject != "span"]
    answers = [
        AnswerPart(question=question.key, value=value, **target._asdict())
        for question in asked
        for target in targets.of(question.subject)
        if (value := value_from_text(question, entered.get(_field(question, target), ()))) is not None
    ]
    shown = shown_places(asked, answers, targets)
    by_key = {question.key: question for question in questions}
    places = []
    for order, question in enumerate(questions):
        decides = by_key.get(question.shown_when.question) if question.shown_when else None
        for target in targets.of(question.subject):
            is_shown = (question.key, target) in shown
            decided_by = ""
            if decides is not None:
                decided_by = _field(decides, deciding_target(target, decides.subject))
            values = entered.get(_field(question, target), ())
            places.append(
                QuestionOnScreen(
                    question=question,
                    field=_field(question, target),
                    values=values,
                    order=order,
                    target=target,
                    response=_words(target, tokens),
                    decided_by=decided_by,
                    is_shown=is_shown,
                    is_invalid=is_invalid and is_shown and question.is_required and not values,
                    is_repeated=question.key in repeated,
                )
            )
    return places


def questions_about_spans(
    questions: Sequence[Question], repeated: Collection[str] = ()
) -> list[QuestionOnScreen]:
    """Return the questions about spans for the editor of a span, which fills them in for the one it edits."""
    by_key = {question.key: question for question in questions}
    # The script puts the token of the response in which the span is.
    tokens = {"comparison": "", "completion": "{candidate}", "span": OF_SPAN}
    places = []
    for order, question in enumerate(questions):
        if question.subject == "span":
            decides = by_key.get(question.shown_when.question) if question.shown_when else None
            places.append(
                QuestionOnScreen(
                    question=question,
                    field=question_field(question, OF_SPAN),
                    order=order,
                    decided_by=question_field(decides, tokens[decides.subject]) if decides else "",
                    is_shown=decides is None,
                    is_repeated=question.key in repeated,
                )
            )
    return places


_TOKEN, _STEP, _WORDS = "\0t", "\0s", "\0w"
"""Stand in rendered questions for what names a step. No text that is stored holds NUL."""


def rendered_of_step(places: Sequence[QuestionOnScreen], known: dict[Any, str]) -> SafeString:
    """Render the questions about one step. Of steps that differ in their names alone the first is rendered.

    known: what was rendered for the steps before. A trace may have hundreds.
    """
    template = "annotation/question_fields.html"
    if any(place.values and not place.has_options for place in places):
        return mark_safe(render_to_string(template, {"places": places}))  # noqa: S308 - a template
    key = tuple(
        (place.question.key, *place.values, place.is_shown, place.is_invalid, place.is_repeated)
        for place in places
    )
    if key not in known:
        masked = [
            replace(place, field=_masked(place.field), decided_by=_masked(place.decided_by), response=_WORDS)
            for place in places
        ]
        known[key] = re.sub(r"\n\s+", "\n", render_to_string(template, {"places": masked}))
    target = places[0].target
    named = known[key].replace(_TOKEN, target.completion or "").replace(_STEP, str(target.step))
    return mark_safe(named.replace(_WORDS, escape(places[0].response)))  # noqa: S308 - a template


def _masked(field: str) -> str:
    """Return the name of a field with places for the response and the step that it names."""
    parts = field.split(".")
    return ".".join([*parts[:3], *(_TOKEN for _part in parts[3:4]), *(_STEP for _part in parts[4:5])])


def _field(question: Question, target: Target) -> str:
    return question_field(question, target.completion or "", target.step)


def _words(target: Target, tokens: Mapping[str, str]) -> str:
    response = tokens.get(target.completion or "", "")
    if target.step is None:
        return response
    return _("step %(number)s of %(response)s") % {"number": target.step + 1, "response": response}
