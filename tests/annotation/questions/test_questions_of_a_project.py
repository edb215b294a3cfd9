"""Questions of a project: versions, conditions, keys, order, and what is refused."""

from typing import Any

import pytest
from django.db import IntegrityError, transaction

from annotation.models import Assignment, Comparison, Project, ProjectQuestion, User
from annotation.record.questions import Question
from annotation.selectors.configuration import configuration_of
from annotation.services.projects.project_questions import newest, save_question
from annotation.services.projects.questions import (
    archive_question,
    delete_question,
    move_question,
    order_questions,
)
from tests import factories
from tests.annotation.judgments.answers import prefer_first, submit
from tests.annotation.questions.asking import KINDS, answer, ask, choices, points, shown_by
from tests.refusals import refused

pytestmark = pytest.mark.django_db


def test_questions_are_asked_in_the_order_in_which_they_were_added(project: Project, carol: User) -> None:
    for key in KINDS:
        ask(project, carol, key)
    asked = configuration_of(project).asked_questions
    assert [(question.key, question.kind) for question in asked] == [
        (key, values["kind"]) for key, values in KINDS.items()
    ]


@pytest.mark.parametrize(
    ("change", "version"),
    [
        ({"text": "Subject"}, 2),
        ({"choices": choices("law", "tax")}, 2),
        ({"help_text": "The main one."}, 1),
        ({"is_required": True}, 1),
        ({"choices": choices("law", "tax", "other", law="L")}, 1),
        ({}, 1),
    ],
)
def test_only_what_changes_the_meaning_makes_a_version(
    project: Project, carol: User, change: dict[str, Any], version: int
) -> None:
    ask(project, carol, "topic")
    row = ask(project, carol, "topic", **change)
    assert newest(row).version == version
    assert configuration_of(project).questions[0].version == version


@pytest.mark.parametrize(
    ("field", "key", "values"),
    [
        ("key", "no key", {"kind": "text", "text": "x"}),
        ("text", "why", {"text": "  "}),
        ("text", "why", {"text": "x" * 301}),
        ("choices", "topic", {"choices": choices("one")}),
        ("choices", "topic", {"choices": (*choices("a"), *choices("a"))}),
        ("choices", "ease", {"choices": points(1, 12)}),
        ("choices", "ease", {"choices": points(1, 1)}),
        ("choices", "ease", {"choices": (*points(1, 2), *points(4, 5))}),
        ("most", "age", {"least": 3, "most": 2}),
        ("shown_when", "why", {"shown_when": shown_by("nothing", "a")}),
        ("shown_when", "why", {"shown_when": shown_by("day", "a")}),
        ("shown_values", "why", {"shown_when": shown_by("topic", "sport")}),
        ("shown_values", "why", {"shown_when": shown_by("topic")}),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(
    project: Project, carol: User, field: str, key: str, values: dict[str, Any]
) -> None:
    ask(project, carol, "topic")
    ask(project, carol, "day")
    count = ProjectQuestion.objects.count()
    with refused("invalid_question", field=field):
        ask(project, carol, key, **values)
    assert ProjectQuestion.objects.count() == count


def test_a_question_about_the_comparison_is_not_shown_by_one_about_a_response(
    project: Project, carol: User
) -> None:
    ask(project, carol, "topic", subject="completion")
    with refused("invalid_question", field="shown_when"):
        ask(project, carol, "why", shown_when=shown_by("topic", "law"))
    ask(project, carol, "why", subject="completion", shown_when=shown_by("topic", "law"))


@pytest.mark.parametrize("values", [{"kind": "choices"}, {"subject": "completion"}])
def test_kind_and_subject_stay(project: Project, carol: User, values: dict[str, str]) -> None:
    ask(project, carol, "topic")
    with refused("fixed_at_creation", field=next(iter(values))):
        ask(project, carol, "topic", **values)


def test_a_new_question_does_not_take_the_key_of_another(project: Project, carol: User) -> None:
    ask(project, carol, "topic")
    with refused("key_in_use", field="key"):
        save_question(
            project=project, question=Question(key="topic", **KINDS["topic"]), saved_by=carol, is_new=True
        )


@pytest.mark.parametrize("key", ["s", "1", "a", "y", "N"])
def test_a_key_that_does_something_else_is_refused_with_the_keys_in_use(
    project: Project, carol: User, key: str
) -> None:
    factories.make_category(project, "rude", shortcut="y")
    ask(project, carol, "faults", choices=choices("tone", "facts", tone="N"))
    with refused("key_in_use_on_screen", field="choices", key=key) as raised:
        ask(project, carol, "topic", choices=choices("law", "tax", law=key))
    taken = raised.value.params["taken"].split()
    assert {"s", "1", "a", "y", "N"} <= set(taken)
    assert "T" not in taken
    ask(project, carol, "topic", choices=choices("law", "tax", law="T"))


def test_a_question_stays_after_the_one_that_shows_it(project: Project, carol: User) -> None:
    ask(project, carol, "topic")
    why = ask(project, carol, "why", shown_when=shown_by("topic", "other"))
    with refused("condition_comes_later", key="why", decides="topic"):
        order_questions(kind=ProjectQuestion, project=project, keys=["why", "topic"], changed_by=carol)
    with refused("condition_comes_later"):
        move_question(question=why, by=-1, changed_by=carol)


def test_a_choice_that_shows_a_question_is_not_removed(project: Project, carol: User) -> None:
    ask(project, carol, "topic")
    ask(project, carol, "why", shown_when=shown_by("topic", "other"))
    with refused("invalid_question", field="choices"):
        ask(project, carol, "topic", choices=choices("law", "tax"))


def test_a_question_that_shows_another_is_neither_archived_nor_deleted(project: Project, carol: User) -> None:
    topic = ask(project, carol, "topic")
    why = ask(project, carol, "why", shown_when=shown_by("topic", "other"))
    with refused("question_shows_another", key="why"):
        archive_question(question=topic, archived=True, changed_by=carol)
    archive_question(question=why, archived=True, changed_by=carol)
    with refused("question_shows_another", key="why"):
        delete_question(question=topic, deleted_by=carol)
    archive_question(question=topic, archived=True, changed_by=carol)
    why.refresh_from_db()
    with refused("question_shown_by_archived", key="topic"):
        archive_question(question=why, archived=False, changed_by=carol)


def test_a_question_that_was_answered_is_archived_not_deleted(
    project: Project, carol: User, pair: Comparison, assignment: Assignment
) -> None:
    row = ask(project, carol, "topic")
    assignment.comparison.project.refresh_from_db()
    submit(assignment, prefer_first(pair, answers=(answer("topic", "law"),)))
    with refused("question_in_use", number=1):
        delete_question(question=row, deleted_by=carol)
    delete_question(question=ask(project, carol, "day"), deleted_by=carol)
    assert [each.key for each in project.questions.all()] == ["topic"]


@pytest.mark.parametrize("values", [{"kind": "guess"}, {"subject": "weather"}, {"key": "topic"}])
def test_the_database_refuses_what_the_service_would(
    project: Project, carol: User, values: dict[str, str]
) -> None:
    ask(project, carol, "topic")
    with pytest.raises(IntegrityError), transaction.atomic():
        ProjectQuestion.objects.create(
            **{"project": project, "key": "new", "kind": "text", "subject": "comparison", **values}
        )
