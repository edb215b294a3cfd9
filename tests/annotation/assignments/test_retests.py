"""Test-retest: a share of what one judged comes back later in another order, once."""

import pytest

from annotation.choices import AssignmentState, Purpose
from annotation.models import Assignment, Comparison, Judgment, Project, User
from annotation.selectors import access
from annotation.services.assignments.leases import expire_leases, release_assignment, skip_assignment
from annotation.services.assignments.next import assign_next, other_order
from tests import factories
from tests.annotation.labelling.work import answer, in_candidate_order, lease, work

pytestmark = pytest.mark.django_db


def retesting(project: Project, share: float, *, comparisons: int = 30, texts: int = 2) -> Project:
    project.retest_share = share
    project.save()
    for _ in range(comparisons):
        factories.make_comparison(project, [f"answer {number}" for number in range(texts)])
    return project


def work_through(project: Project, annotator: User) -> list[Assignment]:
    met = []
    while (assignment := assign_next(project=project, annotator=annotator)) is not None:
        answer(assignment)
        met.append(assignment)
    return met


def first_retest(project: Project, annotator: User) -> Assignment:
    """With a share of 1 the twelfth thing is a retest: eleven were submitted, one lies ten back."""
    retesting(project, 1.0, comparisons=12)
    assert all(assignment.retest_of_id is None for assignment in work(project, annotator, 11))
    retest = lease(project, annotator)
    assert retest.retest_of is not None
    return retest


def test_the_share_is_kept_and_never_exceeded(project: Project, alice: User):
    retesting(project, 0.1, comparisons=30)
    met = work_through(project, alice)
    # Thirty of work, of which a tenth comes back: one after the 11th, when the first has lain long
    # enough, one after the 20th, one after the 30th.
    kinds = [assignment.retest_of_id is not None for assignment in met]
    assert sum(kinds) == 3
    for place in range(len(met)):
        done = kinds[:place].count(False)
        assert kinds[:place].count(True) <= 0.1 * done


def test_at_least_ten_submissions_lie_between(project: Project, alice: User):
    retesting(project, 1.0, comparisons=25)
    met = work_through(project, alice)
    of_work = [met_work.pk for met_work in met if met_work.retest_of_id is None]
    for place, assignment in enumerate(met):
        if assignment.retest_of_id is not None:
            done = [earlier.pk for earlier in met[:place] if earlier.retest_of_id is None]
            assert len(done) - done.index(assignment.retest_of_id) - 1 >= 10
    assert len(of_work) == 25


def test_nothing_comes_back_twice_and_no_retest_comes_back(project: Project, alice: User):
    retesting(project, 1.0, comparisons=25)
    retests = [
        assignment for assignment in work_through(project, alice) if assignment.retest_of_id is not None
    ]
    firsts = [retest.retest_of_id for retest in retests]
    assert len(firsts) == len(set(firsts)) == 15  # all but the last ten
    assert not Assignment.objects.filter(retest_of__retest_of__isnull=False).exists()


def test_a_pair_comes_back_swapped_and_takes_no_place(project: Project, alice: User):
    retest = first_retest(project, alice)
    first = retest.retest_of
    assert first is not None
    assert retest.display_order == first.display_order[::-1]
    assert (retest.comparison_id, retest.slot) == (first.comparison_id, None)
    assert Comparison.objects.get(pk=first.comparison_id).open_slots == 0


@pytest.mark.parametrize("size", [3, 4, 5, 9])
def test_in_a_ranking_every_answer_stands_elsewhere(size: int):
    for number in range(20):
        shown = list(range(size))
        order = other_order(Assignment(pk=number, display_order=shown))
        assert sorted(order) == shown
        assert all(before != now for before, now in zip(shown, order, strict=True))


def test_one_answer_alone_has_one_order():
    assert other_order(Assignment(pk=1, display_order=[7])) == [7]


def test_the_first_judgment_stays_and_the_second_is_no_progress(project: Project, alice: User):
    retest = first_retest(project, alice)
    before = access.progress_of(project, alice, 1)
    judged = access.judgments_current(project).count()
    second = answer(retest, in_candidate_order)
    assert second.supersedes is None
    assert Judgment.objects.filter(comparison=retest.comparison).count() == 2
    assert access.judgments_current(project).count() == judged == 11
    after = access.progress_of(project, alice, 1)
    assert (before.done, before.total) == (after.done, after.total) == (11, 12)


def test_a_retest_is_never_of_gold(project: Project, alice: User):
    project.gold_share = 1.0
    retesting(project, 1.0, comparisons=12)
    for _ in range(15):
        factories.make_gold_item(project)
    work_through(project, alice)
    again = Assignment.objects.filter(retest_of__isnull=False)
    assert again.exists()
    assert not again.exclude(comparison__purpose=Purpose.WORK).exists()


@pytest.mark.parametrize("end", ["release", "skip", "expire"])
def test_however_a_retest_ends_no_place_is_opened_and_the_first_stays(
    project: Project, alice: User, end: str
):
    retest = first_retest(project, alice)
    if end == "release":
        release_assignment(assignment=retest, annotator=alice)
    elif end == "skip":
        skip_assignment(assignment=retest, annotator=alice, reason="I know this one.")
    else:
        Assignment.objects.filter(pk=retest.pk).update(lease_expires_at="2020-01-01T00:00Z")
        assert expire_leases(project=project) == 1
    assert Comparison.objects.get(pk=retest.comparison_id).open_slots == 0
    assert Assignment.objects.get(pk=retest.retest_of_id).state == AssignmentState.SUBMITTED


def test_a_retest_that_ran_out_may_still_be_answered(project: Project, alice: User):
    retest = first_retest(project, alice)
    Assignment.objects.filter(pk=retest.pk).update(lease_expires_at="2020-01-01T00:00Z")
    expire_leases(project=project)
    answer(retest)
    retest.refresh_from_db()
    assert (retest.state, retest.slot) == (AssignmentState.SUBMITTED, None)
    assert Assignment.objects.get(pk=retest.retest_of_id).state == AssignmentState.SUBMITTED
    assert Comparison.objects.get(pk=retest.comparison_id).open_slots == 0


def test_only_ones_own_judgments_come_back(project: Project, alice: User, bob: User):
    retesting(project, 1.0, comparisons=15)
    work(project, alice, 11)
    assert lease(project, bob).retest_of is None
    retest = lease(project, alice)
    assert retest.retest_of is not None
    assert retest.retest_of.annotator == alice


def test_without_a_share_nothing_comes_back(project: Project, alice: User):
    retesting(project, 0.0, comparisons=25)
    assert len(work_through(project, alice)) == 25
