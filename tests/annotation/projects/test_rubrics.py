"""Rubrics: versions that never change, what is published, and what annotators rate by."""

import uuid
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from annotation.errors import InvalidAnswer, NotAllowed, Refusal, WrittenOnceError
from annotation.exchange.records import records
from annotation.models import AuditEntry, Criterion, Judgment, Project, Rubric, RubricVersion, User
from annotation.record.judgment import RatingPart
from annotation.selectors.configuration import configuration_of
from annotation.selectors.rubrics import changes_between, published_version, published_versions
from annotation.services.judgments.submission import submit_judgment
from annotation.services.projects.rubrics import (
    RubricCriterionInput,
    ask_rubric,
    publish_rubric,
    save_rubric,
)
from tests import factories
from tests.records import judgment_record
from tests.refusals import refused

pytestmark = pytest.mark.django_db

ACCURACY = RubricCriterionInput(name="Accuracy", text="Is it true?", weight=2)
TONE = RubricCriterionInput(name="Tone", text="Is it kind?", levels="1: rude", scale="seven")


def save(project: Project, by: User, *criteria: RubricCriterionInput, rubric: Rubric | None = None) -> Any:
    return save_rubric(
        project=project, name="Tea", criteria=criteria or (ACCURACY, TONE), saved_by=by, rubric=rubric
    )


def use(version: RubricVersion, by: User) -> Rubric:
    """Publish a version and have annotators rate by it."""
    return ask_rubric(rubric=publish_rubric(version=version, published_by=by), is_asked=True, by=by)


def criteria_of(project: Project) -> list[tuple[str, str]]:
    project.refresh_from_db()
    return [(row.key, row.description) for row in configuration_of(project).asked_criteria]


# ── Versions ──────────────────────────────────────────────────────────────────────────


def test_an_edit_is_a_new_version_and_the_old_one_stays(project: Project, carol: User):
    first = save(project, carol)
    second = save(project, carol, ACCURACY, rubric=first.rubric)
    assert (first.number, second.number) == (1, 2)
    assert [row.name for row in first.criteria.all()] == ["Accuracy", "Tone"]
    assert [row.name for row in second.criteria.all()] == ["Accuracy"]
    assert save(project, carol, ACCURACY, rubric=first.rubric) == second
    actions = AuditEntry.objects.filter(action="rubric.save").order_by("pk")
    assert [row.details["version"] for row in actions] == [1, 2]


def test_a_version_and_its_criteria_are_never_changed_or_deleted(project: Project, carol: User):
    version = save(project, carol)
    criterion = version.criteria.get(name="Tone")
    criterion.weight = 9
    for change in (
        criterion.save,
        criterion.delete,
        version.save,
        lambda: version.criteria.update(weight=9),
        lambda: RubricVersion.objects.all().delete(),
    ):
        with pytest.raises(WrittenOnceError):
            change()


def test_a_criterion_keeps_its_key_while_name_text_and_scale_stay(project: Project, carol: User):
    Criterion.objects.create(project=project, key="accuracy", label="Our own")
    first = save(project, carol)
    heavier = RubricCriterionInput(name="Accuracy", text="Is it true?", weight=5, levels="5: all")
    reworded = RubricCriterionInput(name="Tone", text="Is it polite?", scale="seven")
    second = save(project, carol, heavier, reworded, rubric=first.rubric)
    assert [row.key for row in first.criteria.all()] == ["accuracy-2", "tone"]
    assert [row.key for row in second.criteria.all()] == ["accuracy-2", "tone-2"]
    third = save(project, carol, ACCURACY, TONE, rubric=first.rubric)
    assert [row.key for row in third.criteria.all()] == ["accuracy-2", "tone"]


def test_the_difference_of_two_versions_names_what_came_what_went_and_what_changed(
    project: Project, carol: User
):
    first = save(project, carol, ACCURACY, TONE, RubricCriterionInput(name="Short"))
    second = save(
        project,
        carol,
        RubricCriterionInput(name="Accuracy", text="Is it true?", weight=3),
        RubricCriterionInput(name="Tone", text="Is it polite?", levels="1: rude", scale="seven"),
        RubricCriterionInput(name="Sources"),
        rubric=first.rubric,
    )
    accuracy, tone, came, went = changes_between(first, second)
    assert (accuracy.facts_differ, accuracy.texts) == (True, ())
    [pieces] = tone.texts
    assert [(piece.kind, piece.text) for piece in pieces if piece.kind != "same"] == [
        ("deleted", "kind"),
        ("inserted", "polite"),
    ]
    assert (came.before, came.after.name) == (None, "Sources")
    assert (went.before.name, went.after) == ("Short", None)
    assert changes_between(second, second) == []


@pytest.mark.parametrize(
    ("criteria", "problem"),
    [
        ([], "1 to 20"),
        ([RubricCriterionInput(name=f"C{n}") for n in range(21)], "1 to 20"),
        ([RubricCriterionInput(name=" ")], "Criterion 1: write a name"),
        ([ACCURACY, RubricCriterionInput(name="B", weight=0)], "Criterion 2: the weight"),
        ([RubricCriterionInput(name="B", weight=float("nan"))], "the weight"),
        ([RubricCriterionInput(name="B", scale="nine")], "scale"),
        ([RubricCriterionInput(name="B", text="x" * 1001)], "1000 characters"),
        ([ACCURACY, RubricCriterionInput(name="ACCURACY")], "same name"),
    ],
)
def test_criteria_that_break_a_limit_are_refused_and_nothing_is_written(
    project: Project, carol: User, criteria: list[RubricCriterionInput], problem: str
):
    with pytest.raises(Refusal, match=problem):
        save_rubric(project=project, name="Tea", criteria=criteria, saved_by=carol)
    assert not RubricVersion.objects.exists()


def test_names_are_unique_in_a_project_and_only_its_managers_write(
    project: Project, carol: User, alice: User
):
    version = save(project, carol)
    with pytest.raises(Refusal, match="this name"):
        save_rubric(project=project, name="tea", criteria=[TONE], saved_by=carol)
    with pytest.raises(NotAllowed):
        save(project, alice)
    with pytest.raises(NotAllowed):
        publish_rubric(version=version, published_by=alice)
    with pytest.raises(NotAllowed):
        ask_rubric(rubric=version.rubric, is_asked=True, by=alice)


def test_the_database_refuses_two_asked_rubrics_and_one_that_is_not_published(project: Project, carol: User):
    first = publish_rubric(version=save(project, carol), published_by=carol)
    other = save_rubric(project=project, name="Other", criteria=[TONE], saved_by=carol).rubric
    for change in ({"is_asked": True}, {"name": ""}, {"name": "Tea"}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Rubric.objects.filter(pk=other.pk).update(**change)
    Rubric.objects.filter(pk=first.pk).update(is_asked=True)
    with pytest.raises(IntegrityError), transaction.atomic():
        Rubric.objects.filter(pk=other.pk).update(is_asked=True, published=first.published)


# ── Use ───────────────────────────────────────────────────────────────────────────────


def test_nothing_is_in_use_before_a_version_is_published(project: Project, carol: User):
    version = save(project, carol)
    assert (list(published_versions(project)), published_version(project, version.pk)) == ([], None)
    with refused("rubric_not_published"):
        ask_rubric(rubric=version.rubric, is_asked=True, by=carol)
    publish_rubric(version=version, published_by=carol)
    assert list(published_versions(project)) == [version]
    # Published is not asked yet.
    assert criteria_of(project) == []


def test_annotators_rate_by_the_asked_rubric_in_its_order_and_by_a_new_version_once_published(
    project: Project, carol: User
):
    Criterion.objects.create(project=project, key="own", label="Our own", position=1)
    version = save(project, carol)
    use(version, carol)
    rated = [("own", ""), ("accuracy", "Is it true?"), ("tone", "Is it kind?\n1: rude")]
    assert criteria_of(project) == rated
    second = save(project, carol, RubricCriterionInput(name="Short"), ACCURACY, rubric=version.rubric)
    assert criteria_of(project) == rated
    publish_rubric(version=second, published_by=carol)
    assert criteria_of(project) == [("own", ""), ("short", ""), ("accuracy", "Is it true?")]
    other = save_rubric(project=project, name="Other", criteria=[TONE], saved_by=carol)
    use(other, carol)
    assert [key for key, _ in criteria_of(project)] == ["own", "tone-2"]
    assert list(Rubric.objects.filter(is_asked=True)) == [other.rubric]
    ask_rubric(rubric=other.rubric, is_asked=False, by=carol)
    assert criteria_of(project) == [("own", "")]


def rate(
    project: Project, annotator: User, rubric: RubricVersion | None = None, *, value: int = 5
) -> Judgment:
    comparison = factories.make_comparison(project)
    completions = sorted(comparison.completions.values_list("pk", flat=True))
    project.refresh_from_db()
    comparison.project = project
    return submit_judgment(
        assignment=factories.lease_to(comparison, annotator),
        annotator=annotator,
        answer=judgment_record(
            verdict="ranked",
            ranks={pk: place for place, pk in enumerate(completions, start=1)},
            ratings=tuple(
                RatingPart(completion=str(pk), criterion=criterion.key, scale=criterion.scale, value=value)
                for pk in completions
                for criterion in configuration_of(project).asked_criteria
            ),
        ),
        idempotency_key=uuid.uuid4(),
        rubric=rubric,
    )


def test_a_judgment_keeps_the_version_that_was_on_screen(project: Project, carol: User, alice: User):
    first = save(project, carol)
    use(first, carol)
    assert rate(project, alice).rubric == first
    # Only the weight changes: what was on screen is still rated whole.
    heavier = RubricCriterionInput(name="Accuracy", text="Is it true?", weight=9)
    second = save(project, carol, heavier, TONE, rubric=first.rubric)
    publish_rubric(version=second, published_by=carol)
    assert rate(project, alice, first).rubric == first
    last = rate(project, alice)
    assert last.rubric == second
    [record] = records(Judgment.objects.filter(pk=last.pk))
    assert record["rubric"] == {"name": "Tea", "version": 2}
    assert {row["criterion"] for row in record["ratings"]} == {"accuracy", "tone"}


def test_a_judgment_without_ratings_by_it_names_no_rubric_and_none_of_another_project(
    project: Project, carol: User, alice: User
):
    assert factories.make_judgment(factories.make_comparison(project), alice).rubric is None
    Criterion.objects.create(project=project, key="own", label="Our own")
    version = save(project, carol)
    publish_rubric(version=version, published_by=carol)
    # Published and not asked: the ratings are by another criterion.
    assert rate(project, alice).rubric is None
    other = factories.make_project(slug="coffee", managers=[carol])
    foreign = save(other, carol)
    publish_rubric(version=foreign, published_by=carol)
    with refused("rubric_of_other_project", InvalidAnswer):
        rate(project, alice, foreign)
