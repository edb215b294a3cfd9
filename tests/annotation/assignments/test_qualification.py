"""The qualification set: passed before real work, by everyone who is not a manager."""

import pytest

from annotation.choices import Purpose, QualificationState, Role, WhyNothing
from annotation.models import Assignment, Comparison, Membership, Project, User
from annotation.selectors import access, eligibility
from annotation.selectors.eligibility import qualification_of, why_nothing
from annotation.services.assignments.leases import expire_leases, skip_assignment
from annotation.services.assignments.next import assign_next
from annotation.services.projects.projects import add_member
from tests import factories
from tests.annotation.labelling.work import answer, lease, reversed_order, work

pytestmark = pytest.mark.django_db


@pytest.fixture
def items(project: Project) -> list[Comparison]:
    """Four items of which three must be right; the first candidate is the better one."""
    project.qualification_pass_share = 0.75
    project.save()
    factories.make_comparison(project)
    return [factories.make_gold_item(project, purpose=Purpose.QUALIFICATION) for _ in range(4)]


def membership(project: Project, user: User) -> Membership:
    return Membership.objects.get(project=project, user=user)


def test_the_items_come_in_order_and_before_all_work(project: Project, alice: User, items: list[Comparison]):
    met = work(project, alice, 4)
    assert [assignment.comparison for assignment in met] == items
    assert {assignment.slot for assignment in met} == {None}
    assert lease(project, alice).comparison.purpose == Purpose.WORK


def test_who_passes_is_let_in_with_their_last_answer(project: Project, alice: User, items: list[Comparison]):
    answer(lease(project, alice), reversed_order)  # one wrong is allowed
    work(project, alice, 2)
    qualification = qualification_of(project, alice)
    assert (qualification.state, qualification.done, qualification.total) == (QualificationState.OPEN, 3, 4)
    assert (qualification.right, qualification.needed) == (2, 3)
    assert membership(project, alice).qualified_at is None
    work(project, alice, 1)
    assert membership(project, alice).qualified_at is not None
    assert qualification_of(project, alice).state == QualificationState.PASSED
    # It is passed for good, even when items are added.
    factories.make_gold_item(project, purpose=Purpose.QUALIFICATION)
    assert lease(project, alice).comparison.purpose == Purpose.WORK


def test_who_fails_gets_no_work_and_is_told_why(project: Project, alice: User, items: list[Comparison]):
    for _ in range(2):
        answer(lease(project, alice), reversed_order)
    work(project, alice, 2)
    assert assign_next(project=project, annotator=alice) is None
    qualification = qualification_of(project, alice)
    assert (qualification.state, qualification.right, qualification.needed) == (
        QualificationState.FAILED,
        2,
        3,
    )
    assert why_nothing(project, alice) == WhyNothing.NOT_QUALIFIED
    assert membership(project, alice).qualified_at is None


def test_a_second_answer_to_an_item_does_not_count(project: Project, alice: User, items: list[Comparison]):
    wrong = []
    for _ in range(2):
        assignment = lease(project, alice)
        answer(assignment, reversed_order)
        wrong.append(assignment)
    work(project, alice, 2)
    for assignment in wrong:
        answer(assignment)
    assert qualification_of(project, alice).right == 2
    assert assign_next(project=project, annotator=alice) is None


def test_a_skipped_item_is_done_and_not_right(project: Project, alice: User, items: list[Comparison]):
    work(project, alice, 3)
    skip_assignment(assignment=lease(project, alice), annotator=alice, reason="I do not know.")
    qualification = qualification_of(project, alice)
    assert (qualification.done, qualification.right, qualification.state) == (4, 3, QualificationState.PASSED)
    assert membership(project, alice).qualified_at is not None
    assert lease(project, alice).comparison.purpose == Purpose.WORK


def test_an_item_whose_lease_ran_out_comes_back(project: Project, alice: User, items: list[Comparison]):
    assert lease(project, alice).comparison == items[0]
    Assignment.objects.update(lease_expires_at="2020-01-01T00:00Z")
    assert expire_leases(project=project) == 1
    assert lease(project, alice).comparison == items[0]


def test_when_the_bar_is_lowered_who_is_above_it_is_let_in(
    project: Project, alice: User, items: list[Comparison]
):
    for _ in range(2):
        answer(lease(project, alice), reversed_order)
    work(project, alice, 2)
    assert assign_next(project=project, annotator=alice) is None
    project.qualification_pass_share = 0.5
    project.save()
    assert lease(project, alice).comparison.purpose == Purpose.WORK
    assert membership(project, alice).qualified_at is not None


def test_managers_and_superusers_are_not_asked_and_reviewers_are(
    project: Project, carol: User, admin: User, oscar: User, items: list[Comparison]
):
    add_member(project=project, user=oscar, role=Role.REVIEWER)
    assert lease(project, oscar).comparison == items[0]
    assert lease(project, carol).comparison.purpose == Purpose.WORK
    assert qualification_of(project, carol).state == QualificationState.NOT_ASKED
    factories.make_comparison(project)
    assert lease(project, admin).comparison.purpose == Purpose.WORK
    assert qualification_of(project, admin).state == QualificationState.NOT_ASKED


def test_without_a_bar_or_without_items_nobody_is_asked(project: Project, alice: User, bob: User):
    factories.make_gold_item(project, purpose=Purpose.QUALIFICATION)
    factories.make_comparison(project)
    assert qualification_of(project, alice).state == QualificationState.NOT_ASKED
    assert lease(project, alice).comparison.purpose == Purpose.WORK
    other = factories.make_project(slug="coffee", annotators=[bob], qualification_pass_share=0.5)
    factories.make_comparison(other)
    assert qualification_of(other, bob).state == QualificationState.NOT_ASKED
    assert lease(other, bob).comparison.purpose == Purpose.WORK
    assert Membership.objects.get(project=other, user=bob).qualified_at is None


@pytest.mark.parametrize(
    ("share", "total", "needed"),
    [(0.07, 100, 7), (0.7, 10, 7), (0.75, 4, 3), (0.5, 3, 2), (0, 3, 0), (1, 3, 3)],
)
def test_so_many_right_answers_pass(project: Project, alice: User, share: float, total: int, needed: int):
    project.qualification_pass_share = share
    project.save()
    first = factories.make_gold_item(project, purpose=Purpose.QUALIFICATION)
    Comparison.objects.bulk_create(
        Comparison(
            project=project,
            prompt=first.prompt,
            purpose=Purpose.QUALIFICATION,
            size=2,
            open_slots=0,
            completion_set=str(number),
        )
        for number in range(total - 1)
    )
    qualification = eligibility.qualification_of(project, alice)
    assert (qualification.total, qualification.needed) == (total, needed)


def test_qualification_is_never_among_the_judgments_nor_in_anyones_progress(
    project: Project, alice: User, items: list[Comparison]
):
    work(project, alice, 4)
    assert not access.judgments_current(project).exists()
    progress = access.progress_of(project, alice, 1)
    assert (progress.done, progress.total) == (0, 1)
