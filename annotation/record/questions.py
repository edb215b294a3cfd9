"""Questions of a project and the rules for their answers, without a database."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from annotation.record.base import Text, one_of, record
from annotation.record.judgment import AnswerPart, AnswerValue, SpanPlace, Target

# Texts for a type checker, because the choices of the database are compared with them.
Kind = Annotated[str, one_of("choice", "choices", "scale", "number", "text", "date")]
SUBJECTS = ("comparison", "completion", "span", "step")
Subject = Annotated[str, one_of(*SUBJECTS)]
CHOSEN_KINDS = ("choice", "choices", "scale")
"""Kinds that are answered by choosing; another question may be shown by what was chosen."""


@record
class Choice:
    """A choice, or a point of a scale."""

    key: Text
    """Of a point of a scale its number, as a text."""
    label: str
    shortcut: str = ""


@record
class Condition:
    """Shows a question only where an earlier one has one of these answers."""

    question: str
    values: tuple[str, ...]
    """Keys of choices."""


@record
class Question:
    """A question in one of its versions."""

    key: Text
    kind: Kind
    text: Text
    subject: Subject = "comparison"
    version: int = 1
    help_text: str = ""
    is_required: bool = False
    is_archived: bool = False
    choices: tuple[Choice, ...] = ()
    """Of a scale its points, the lowest first."""
    unit: str = ""
    least: float | None = None
    most: float | None = None
    shown_when: Condition | None = None
    categories: tuple[str, ...] = ()
    """Of a question about spans: keys of the categories whose spans it is asked of; none asks it of all."""

    def is_asked_of(self, target: Target) -> bool:
        """Return whether the category of the span lets the question be asked; True for no span."""
        return not self.categories or target.span is None or target.span[0] in self.categories

    @property
    def choice_keys(self) -> tuple[str, ...]:
        """Return the keys of the choices."""
        return tuple(choice.key for choice in self.choices)

    @property
    def can_be_missing(self) -> bool:
        """Return True where there may be nothing to ask it of: no span, no trace."""
        return self.subject in ("span", "step")

    def may_be_shown_by(self, subject: str) -> bool:
        """Return whether an answer about such a subject can decide about this question.

        One about the whole decides about its parts: about the comparison, the completion or the same span.
        """
        return subject in ("comparison", self.subject) or (subject == "completion" and self.can_be_missing)

    def accepts(self, value: AnswerValue) -> bool:
        """Return whether the value is an answer of this kind and within its bounds."""
        return _ACCEPTS[self.kind](self, value)


def _accepts_choice(question: Question, value: AnswerValue) -> bool:
    return isinstance(value, str) and value in question.choice_keys


def _accepts_choices(question: Question, value: AnswerValue) -> bool:
    return (
        isinstance(value, tuple)
        and bool(value)
        and len(set(value)) == len(value)
        and set(value) <= set(question.choice_keys)
    )


def _accepts_point(question: Question, value: AnswerValue) -> bool:
    return type(value) is int and str(value) in question.choice_keys


def _accepts_number(question: Question, value: AnswerValue) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return False
    low = -math.inf if question.least is None else question.least
    high = math.inf if question.most is None else question.most
    return low <= value <= high


def _accepts_text(_question: Question, value: AnswerValue) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _accepts_date(_question: Question, value: AnswerValue) -> bool:
    try:
        return isinstance(value, str) and datetime.date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


_ACCEPTS: Mapping[str, Callable[[Question, AnswerValue], bool]] = {
    "choice": _accepts_choice,
    "choices": _accepts_choices,
    "scale": _accepts_point,
    "number": _accepts_number,
    "text": _accepts_text,
    "date": _accepts_date,
}


def in_order_of_choices(question: Question, value: AnswerValue) -> AnswerValue:
    """Return several choices in the order in which the question has them, any other value as it is."""
    if isinstance(value, tuple):
        return tuple(sorted(value, key=question.choice_keys.index))
    return value


def chosen_keys(value: AnswerValue) -> frozenset[str]:
    """Return the keys of the choices that a value is made of."""
    return frozenset(value if isinstance(value, tuple) else [str(value)])


def value_from_text(question: Question, texts: Sequence[str]) -> AnswerValue | None:
    """Return the value that form fields or cells of a table hold; None for an empty one.

    A text that is no number stays a text, which `accepts` refuses.
    """
    filled = tuple(text for text in texts if text.strip())
    if not filled:
        return None
    if question.kind == "choices":
        return filled
    text = filled[0]
    try:
        if question.kind == "scale":
            return int(text)
        if question.kind == "number":
            number = float(text.replace(",", ".", 1))
            return int(number) if number.is_integer() and abs(number) < 2**53 else number
    except ValueError:
        return text
    return text if question.kind == "text" else text.strip()


SEPARATOR = "|"
"""Between several choices in one cell of a table."""


def as_text(value: AnswerValue) -> str:
    """Return a value as one cell of a table."""
    return SEPARATOR.join(value) if isinstance(value, tuple) else str(value)


def fitted(question: Question, value: AnswerValue) -> AnswerValue:
    """Return the value of a file in the type that its question has, where it can be that.

    Formats that know no numbers or no lists write texts, those that know only lists write one choice as one.
    """
    if question.kind == "choices" and isinstance(value, str):
        return tuple(filter(None, value.split(SEPARATOR)))
    if isinstance(value, tuple):
        return value if question.kind == "choices" or len(value) != 1 else fitted(question, value[0])
    if question.kind in ("scale", "number") and isinstance(value, str):
        read = value_from_text(question, [value])
        return value if read is None else read
    if question.kind == "scale" and isinstance(value, float) and value.is_integer():
        return int(value)
    if question.kind == "date" and isinstance(value, str):
        return value.strip()[:10]
    return value


Place = tuple[str, Target]
"""Key of a question, and what it is asked of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Targets:
    """All that questions can be asked of in one judgment."""

    completions: Sequence[str] = ()
    steps: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Completion → the steps that the agent took."""
    spans: Sequence[tuple[str, SpanPlace]] = ()
    """Completion and place of each span."""

    def of(self, subject: str) -> Iterator[Target]:
        """Yield what questions about this subject are asked of."""
        if subject == "comparison":
            yield Target()
        elif subject == "completion":
            yield from map(Target, self.completions)
        elif subject == "step":
            for completion in self.completions:
                yield from (Target(completion, step) for step in self.steps.get(completion, ()))
        else:
            yield from (Target(completion, None, place) for completion, place in self.spans)


def deciding_target(target: Target, subject: str) -> Target:
    """Return what the question that shows another is asked of, where the other one is asked of `target`."""
    if subject == "comparison":
        return Target()
    return Target(target.completion) if subject == "completion" else target


def shown_places(
    questions: Sequence[Question], answers: Iterable[AnswerPart], targets: Targets
) -> set[Place]:
    """Return where questions are asked, by the answers to those before them.

    An answer where its own question is not shown shows nothing.
    """
    given: dict[Place, frozenset[str]] = {
        (part.question, part.target): chosen_keys(part.value) for part in answers
    }
    by_key = {question.key: question for question in questions}
    shown: set[Place] = set()
    for question in questions:
        if question.is_archived:
            continue
        for target in filter(question.is_asked_of, targets.of(question.subject)):
            if question.shown_when is not None:
                condition = question.shown_when
                decides = by_key.get(condition.question)
                if decides is None:
                    continue
                place = (decides.key, deciding_target(target, decides.subject))
                if place not in shown or not given.get(place, frozenset()) & set(condition.values):
                    continue
            shown.add((question.key, target))
    return shown
