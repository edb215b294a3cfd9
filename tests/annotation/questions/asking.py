"""Questions of a project, for the tests of questions and answers."""

from typing import Any

from annotation.models import Project, ProjectQuestion, User
from annotation.record.judgment import AnswerPart, AnswerValue
from annotation.record.questions import Choice, Condition, Question
from annotation.services.projects.project_questions import save_question


def choices(*keys: str, **shortcuts: str) -> tuple[Choice, ...]:
    return tuple(Choice(key=key, label=key.title(), shortcut=shortcuts.get(key, "")) for key in keys)


def points(least: int, most: int) -> tuple[Choice, ...]:
    return tuple(Choice(key=str(number), label="") for number in range(least, most + 1))


def shown_by(key: str, *values: str) -> Condition:
    return Condition(question=key, values=values)


TOPIC: dict[str, Any] = {"kind": "choice", "text": "Topic", "choices": choices("law", "tax", "other")}
FAULTS: dict[str, Any] = {"kind": "choices", "text": "Faults", "choices": choices("tone", "facts", "form")}
EASE: dict[str, Any] = {"kind": "scale", "text": "Ease", "choices": points(0, 10)}
AGE: dict[str, Any] = {"kind": "number", "text": "Age", "unit": "years", "least": 0, "most": 120}
WHY: dict[str, Any] = {"kind": "text", "text": "Why?"}
DAY: dict[str, Any] = {"kind": "date", "text": "Day"}
KINDS = {"topic": TOPIC, "faults": FAULTS, "ease": EASE, "age": AGE, "why": WHY, "day": DAY}
VALUES: dict[str, AnswerValue] = {
    "topic": "tax",
    "faults": ("tone", "form"),
    "ease": 7,
    "age": 41.5,
    "why": "Because – “so” 🍵",
    "day": "2026-02-28",
}
"""An answer to each of `KINDS`."""


def ask(project: Project, manager: User, key: str, **values: Any) -> ProjectQuestion:
    """Add or change a question; by its key one of `KINDS`, with other values."""
    question = Question(key=key, **{**KINDS.get(key, {}), **values})
    row = save_question(project=project, question=question, saved_by=manager)
    project.refresh_from_db()
    return row


def answer(key: str, value: AnswerValue, **more: Any) -> AnswerPart:
    return AnswerPart(question=key, value=value, **more)
