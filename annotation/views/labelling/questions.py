"""The project's questions on the labelling screen, and in the preview of one that is edited."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from django.utils.safestring import SafeString

from annotation.forms.judgment import question_field
from annotation.record.judgment import AnswerPart
from annotation.record.questions import Question, shown_places, value_from_text
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
    """A question, asked of the comparison or of one response, with what was entered."""

    question: Question
    field: str
    values: Sequence[str]
    order: int
    token: str = ""
    response: str = ""
    """Words about the response; empty for the comparison."""
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
    *,
    is_invalid: bool = False,
    repeated: Collection[str] = (),
) -> list[QuestionOnScreen]:
    """Return every place where a question is asked, in order.

    entered: name of a field → its values. tokens: token of a response → words about it.
    """
    answers = [
        AnswerPart(question=question.key, completion=token or None, value=value)
        for question in questions
        for token in _tokens(question, tokens)
        if (value := value_from_text(question, entered.get(question_field(question, token), ()))) is not None
    ]
    shown = shown_places(questions, answers, list(tokens))
    by_key = {question.key: question for question in questions}
    places = []
    for order, question in enumerate(questions):
        decides = by_key.get(question.shown_when.question) if question.shown_when else None
        for token in _tokens(question, tokens):
            is_shown = (question.key, token or None) in shown
            decided_by = ""
            if decides is not None:
                decided_by = question_field(decides, token if decides.is_about_completions else "")
            values = entered.get(question_field(question, token), ())
            places.append(
                QuestionOnScreen(
                    question=question,
                    field=question_field(question, token),
                    values=values,
                    order=order,
                    token=token,
                    response=tokens.get(token, ""),
                    decided_by=decided_by,
                    is_shown=is_shown,
                    is_invalid=is_invalid and is_shown and question.is_required and not values,
                    is_repeated=question.key in repeated,
                )
            )
    return places


def _tokens(question: Question, tokens: Mapping[str, str]) -> Sequence[str]:
    return list(tokens) if question.is_about_completions else [""]
