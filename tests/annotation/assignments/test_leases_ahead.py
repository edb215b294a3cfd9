"""Two comparisons in one person's hands: the one on screen and the next; and the limit of a day."""

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from annotation.choices import AssignmentState, WhyNothing
from annotation.errors import NotAllowed
from annotation.models import Assignment, Comparison, Project, User
from annotation.selectors.eligibility import left_today, why_nothing
from annotation.services.assignments.leases import (
    expire_leases,
    release_assignment,
    renew_lease,
    skip_assignment,
)
from annotation.services.assignments.next import assign_ahead, assign_next
from tests import factories
from tests.annotation.labelling.work import answer, lease, reversed_order, work
from tests.refusals import refused

pytestmark = pytest.mark.django_db


def ahead(project: Project, annotator: User, after: Assignment) -> Assignment:
    assignment = assign_ahead(project=project, annotator=annotator, after=after)
    assert assignment is not None
    return assignment


def held(annotator: User) -> int:
    return Assignment.objects.filter(annotator=annotator, state=AssignmentState.LEASED).count()


def comparisons(project: Project, number: int) -> list[Comparison]:
    return [factories.make_comparison(project) for _ in range(number)]


def test_the_next_is_leased_while_one_works_and_asking_again_gives_the_same(project: Project, alice: User):
    first, second, _ = comparisons(project, 3)
    in_hand = lease(project, alice)
    following = ahead(project, alice, in_hand)
    assert (in_hand.comparison, following.comparison) == (first, second)
    assert ahead(project, alice, in_hand) == following
    assert held(alice) == 2


def test_the_oldest_is_in_hand_and_the_one_ahead_comes_after_it(project: Project, alice: User):
    comparisons(project, 3)
    in_hand = lease(project, alice)
    following = ahead(project, alice, in_hand)
    assert lease(project, alice) == in_hand
    answer(in_hand)
    assert lease(project, alice) == following
    third = ahead(project, alice, following)
    assert third not in (in_hand, following)
    assert held(alice) == 2


def test_nobody_ever_holds_three(project: Project, alice: User):
    comparisons(project, 5)
    in_hand = lease(project, alice)
    following = ahead(project, alice, in_hand)
    # After either of them comes the other.
    assert ahead(project, alice, following) == in_hand
    answer(in_hand)
    third = ahead(project, alice, following)
    # What was submitted and is opened again is not in hand: after it comes what is held longest.
    assert ahead(project, alice, in_hand) == following
    assert third.state == AssignmentState.LEASED
    assert held(alice) == 2


def test_when_nothing_comes_after_nothing_is_leased(project: Project, alice: User):
    comparisons(project, 1)
    assert assign_ahead(project=project, annotator=alice, after=lease(project, alice)) is None
    assert held(alice) == 1


def test_nobody_else_gets_what_is_loaded_ahead(project: Project, alice: User, bob: User):
    comparisons(project, 2)
    ahead(project, alice, lease(project, alice))
    assert assign_next(project=project, annotator=bob) is None


def test_nothing_is_leased_after_another_persons_work(project: Project, alice: User, bob: User):
    comparisons(project, 3)
    with refused("assigned_to_another", NotAllowed):
        assign_ahead(project=project, annotator=bob, after=lease(project, alice))
    assert held(bob) == 0


def test_skipping_or_giving_back_leaves_the_one_ahead(project: Project, alice: User):
    comparisons(project, 3)
    for end in (skip_assignment, release_assignment):
        in_hand = lease(project, alice)
        following = ahead(project, alice, in_hand)
        end(assignment=in_hand, annotator=alice, **({"reason": ""} if end is skip_assignment else {}))
        assert lease(project, alice) == following


def test_who_is_at_work_keeps_both(project: Project, alice: User):
    comparisons(project, 2)
    in_hand = lease(project, alice)
    ahead(project, alice, in_hand)
    Assignment.objects.update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    renew_lease(assignment=in_hand, annotator=alice)
    assert expire_leases(project=project) == 0
    assert held(alice) == 2


def test_both_come_back_when_nobody_is_at_work(project: Project, alice: User, bob: User):
    both = comparisons(project, 2)
    ahead(project, alice, lease(project, alice))
    Assignment.objects.update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    assert {assignment.comparison for assignment in work(project, bob, 2)} == set(both)


def test_the_days_limit_ends_the_day_and_the_next_day_begins_anew(project: Project, alice: User):
    project.daily_limit = 2
    project.save()
    comparisons(project, 5)
    assert left_today(project, alice, None) == 2
    work(project, alice, 2)
    assert assign_next(project=project, annotator=alice) is None
    assert why_nothing(project, alice) == WhyNothing.DAY_IS_FULL
    yesterday = timezone.now() - timedelta(days=1)
    Assignment.objects.update(closed_at=yesterday)
    assert left_today(project, alice, None) == 2
    lease(project, alice)


def test_a_day_begins_at_midnight_where_the_server_is(project: Project, alice: User, settings):
    settings.TIME_ZONE = "Asia/Tokyo"
    project.daily_limit = 5
    comparisons(project, 2)
    before, after = work(project, alice, 2)
    here = timezone.get_default_timezone()
    midnight = datetime.combine(timezone.localdate(), datetime.min.time(), tzinfo=here)
    assert midnight.utcoffset() == timedelta(hours=9)
    Assignment.objects.filter(pk=before.pk).update(closed_at=midnight - timedelta(seconds=1))
    Assignment.objects.filter(pk=after.pk).update(closed_at=midnight)
    # Whatever time zone a person's own page is in, the day is the server's.
    with timezone.override("America/Los_Angeles"):
        assert left_today(project, alice, None) == 4


def test_what_is_in_hand_counts_towards_the_day_before_more_is_leased(project: Project, alice: User):
    project.daily_limit = 2
    project.save()
    comparisons(project, 5)
    work(project, alice, 1)
    last = lease(project, alice)
    assert assign_ahead(project=project, annotator=alice, after=last) is None
    answer(last)
    assert assign_next(project=project, annotator=alice) is None
    assert held(alice) == 0


def test_a_change_of_mind_is_no_second_submission(project: Project, alice: User):
    project.daily_limit = 2
    project.save()
    comparisons(project, 5)
    (first,) = work(project, alice, 1)
    answer(first, reversed_order)
    assert left_today(project, alice, None) == 1


def test_one_persons_day_and_one_projects_day_are_no_others(project: Project, alice: User, bob: User):
    other = factories.make_project(slug="coffee", annotators=[alice], daily_limit=1)
    project.daily_limit = 1
    project.save()
    comparisons(project, 3)
    comparisons(other, 1)
    work(project, alice, 1)
    work(project, bob, 1)
    work(other, alice, 1)
    assert assign_next(project=project, annotator=alice) is None


def test_without_a_limit_the_day_has_no_end(project: Project, alice: User):
    comparisons(project, 1)
    assert left_today(project, alice, None) is None
    work(project, alice, 1)
    assert assign_next(project=project, annotator=alice) is None
    assert why_nothing(project, alice) == WhyNothing.NOTHING_LEFT
