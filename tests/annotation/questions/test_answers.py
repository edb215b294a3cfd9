"""Answers to the questions of a project: what is stored with the judgment, and what is refused."""

from typing import Any

import pytest
from django.db import IntegrityError, transaction

from annotation.choices import Verdict
from annotation.models import Assignment, Comparison, Project, QuestionAnswer, User
from annotation.record.judgment import AnswerPart, AnswerValue
from annotation.selectors.records import records_of
from annotation.services.projects.questions import archive_question
from tests.annotation.judgments.answers import completions_of, nothing_was_written, prefer_first, submit
from tests.annotation.questions.asking import KINDS, VALUES, answer, ask, shown_by
from tests.records import judgment_record
from tests.refusals import refused

pytestmark = pytest.mark.django_db


@pytest.fixture
def asked(project: Project, carol: User, assignment: Assignment) -> Assignment:
    """Alice's lease, in a project that asks one question of each kind."""
    for key in KINDS:
        ask(project, carol, key)
    assignment.comparison.project = project
    return assignment


def stored(judgment: Any) -> dict[str, AnswerPart]:
    return {part.question: part for part in records_of([judgment.pk])[judgment.pk].answers}


def test_answers_of_every_kind_come_back_as_they_were_given(asked: Assignment, pair: Comparison) -> None:
    answers = tuple(answer(key, value) for key, value in VALUES.items())
    judgment = submit(asked, prefer_first(pair, answers=answers[::-1]))
    assert {key: part.value for key, part in stored(judgment).items()} == VALUES
    assert list(stored(judgment)) == list(KINDS)
    assert {part.version for part in stored(judgment).values()} == {1}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("topic", "sport"),
        ("topic", ("law",)),
        ("topic", 1),
        ("faults", "tone"),
        ("faults", ()),
        ("faults", ("tone", "tone")),
        ("faults", ("tone", "sport")),
        ("ease", 11),
        ("ease", -1),
        ("ease", "7"),
        ("ease", 7.0),
        ("age", -0.5),
        ("age", 121),
        ("age", "old"),
        ("why", "  "),
        ("why", 3),
        ("day", "2026-02-29"),
        ("day", "28.2.2026"),
        ("day", "20260228"),
    ],
)
def test_a_value_that_does_not_answer_its_question_is_refused(
    asked: Assignment, pair: Comparison, key: str, value: AnswerValue
) -> None:
    with refused("invalid_answer_value", field="answers"):
        submit(asked, prefer_first(pair, answers=(answer(key, value),)))
    nothing_was_written(asked)


def test_an_answer_names_a_question_of_the_project_once(asked: Assignment, pair: Comparison) -> None:
    with refused("unknown_question", field="answers", number=1, key="mood"):
        submit(asked, prefer_first(pair, answers=(answer("mood", "good"),)))
    with refused("part_given_twice", field="answers", number=2):
        submit(asked, prefer_first(pair, answers=(answer("topic", "law"), answer("topic", "tax"))))
    with refused("unknown_question_version", field="answers", version=2):
        submit(asked, prefer_first(pair, answers=(answer("topic", "law", version=2),)))
    with refused("text_holds_nul", field="answers"):
        submit(asked, prefer_first(pair, answers=(answer("why", "a\x00b"),)))
    nothing_was_written(asked)


def test_a_question_about_responses_is_answered_for_each(
    project: Project, carol: User, assignment: Assignment, pair: Comparison
) -> None:
    ask(project, carol, "ease", subject="completion", is_required=True)
    ask(project, carol, "topic")
    assignment.comparison.project = project
    first, second = (str(completion.pk) for completion in completions_of(pair))
    for wrong in (
        answer("ease", 3),
        answer("ease", 3, completion="0"),
        answer("topic", "law", completion=first),
    ):
        with refused("answer_of_other_subject", field="answers"):
            submit(assignment, prefer_first(pair, answers=(wrong,)))
    with refused("answer_missing", question="Ease"):
        submit(assignment, prefer_first(pair, answers=(answer("ease", 3, completion=first),)))
    answers = (answer("ease", 8, completion=second), answer("ease", 3, completion=first))
    judgment = submit(assignment, prefer_first(pair, answers=answers))
    assert [(part.completion, part.value) for part in records_of([judgment.pk])[judgment.pk].answers] == [
        (first, 3),
        (second, 8),
    ]


def test_a_required_question_is_answered_unless_nobody_could_judge(
    project: Project, carol: User, assignment: Assignment, pair: Comparison
) -> None:
    ask(project, carol, "topic", is_required=True)
    assignment.comparison.project = project
    with refused("answer_missing", field="answers", question="Topic"):
        submit(assignment, prefer_first(pair))
    nothing_was_written(assignment)
    submit(assignment, judgment_record(Verdict.CANNOT_JUDGE))


def test_a_conditional_question_is_asked_only_where_its_condition_holds(
    project: Project, carol: User, assignment: Assignment, pair: Comparison
) -> None:
    ask(project, carol, "topic")
    ask(project, carol, "faults", shown_when=shown_by("topic", "tax", "other"))
    ask(project, carol, "why", is_required=True, shown_when=shown_by("faults", "form"))
    assignment.comparison.project = project
    law, tax = answer("topic", "law"), answer("topic", "tax")
    form, why = answer("faults", ("tone", "form")), answer("why", "So.")
    with refused("answer_not_asked", question="Faults"):
        submit(assignment, prefer_first(pair, answers=(law, form)))
    # What is hidden shows nothing: the answer of a question that is not asked decides nothing.
    with refused("answer_not_asked"):
        submit(assignment, prefer_first(pair, answers=(law, form, why)))
    with refused("answer_missing", question="Why?"):
        submit(assignment, prefer_first(pair, answers=(tax, form)))
    judgment = submit(assignment, prefer_first(pair, answers=(tax, form, why)))
    assert list(stored(judgment)) == ["topic", "faults", "why"]


def test_answers_keep_the_version_that_they_answered(
    project: Project, carol: User, asked: Assignment, pair: Comparison
) -> None:
    judgment = submit(asked, prefer_first(pair, answers=(answer("topic", "other"),)))
    ask(project, carol, "topic", text="Subject", choices=KINDS["topic"]["choices"][:2])
    assert (stored(judgment)["topic"].version, stored(judgment)["topic"].value) == (1, "other")
    asked.comparison.project = project
    with refused("invalid_answer_value"):
        submit(asked, prefer_first(pair, answers=(answer("topic", "other"),)))
    later = submit(asked, prefer_first(pair, answers=(answer("topic", "other", version=1),)))
    assert stored(later)["topic"].version == 1
    newest = submit(asked, prefer_first(pair, answers=(answer("topic", "law"),)))
    assert stored(newest)["topic"].version == 2


def test_an_archived_question_is_not_asked(
    project: Project, carol: User, assignment: Assignment, pair: Comparison
) -> None:
    row = ask(project, carol, "topic", is_required=True)
    archive_question(question=row, archived=True, changed_by=carol)
    project.refresh_from_db()
    assignment.comparison.project = project
    with refused("answer_not_asked"):
        submit(assignment, prefer_first(pair, answers=(answer("topic", "law"),)))
    submit(assignment, prefer_first(pair))


def test_the_database_holds_one_answer_to_a_question(asked: Assignment, pair: Comparison) -> None:
    submit(asked, prefer_first(pair, answers=(answer("topic", "law"),)))
    row = QuestionAnswer.objects.get()
    with pytest.raises(IntegrityError), transaction.atomic():
        QuestionAnswer.objects.create(judgment=row.judgment, version=row.version, value="tax")
