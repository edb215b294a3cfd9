"""The queue: its order, the control arm beside it, and a walk that stays short."""

import hashlib
from collections import Counter
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from annotation.choices import AcquisitionArm, AcquisitionStrategy, AssignmentState
from annotation.models import Assignment, Candidate, Comparison, Project, User
from annotation.services.assignments.leases import release_assignment, skip_assignment, stale_leases
from annotation.services.assignments.next import QUEUE_ORDER, assign_next, first_open, open_to
from annotation.services.texts import overlap_of
from tests import factories
from tests.annotation.labelling.work import answer, lease, work

pytestmark = pytest.mark.django_db


def many(project: Project, number: int, **fields: object) -> list[Comparison]:
    """Open pairs of one and the same two answers, all at once."""
    prompt = project.prompts.first() or factories.make_prompt(project)
    pair = list(prompt.completions.all()) or factories.make_completions(
        prompt, ["Two minutes.", "Ten hours."]
    )
    made = Comparison.objects.bulk_create(
        Comparison(
            **{
                "project": project,
                "prompt": prompt,
                "size": 2,
                "overlap": project.overlap,
                "open_slots": project.overlap,
                "completion_set": hashlib.sha256(f"{place} {fields}".encode()).hexdigest(),
                **fields,
            }
        )
        for place in range(number)
    )
    Candidate.objects.bulk_create(
        Candidate(comparison=comparison, completion=completion, index=index)
        for comparison in made
        for index, completion in enumerate(pair)
    )
    return made


def had(annotator: User, comparisons: list[Comparison]) -> None:
    """This person judged them, in order; they stay open to others."""
    now = timezone.now()
    Assignment.objects.bulk_create(
        Assignment(
            comparison=comparison,
            annotator=annotator,
            slot=0,
            state=AssignmentState.SUBMITTED,
            display_order=[],
            leased_at=now,
            lease_expires_at=now,
            closed_at=now + timedelta(milliseconds=place),
        )
        for place, comparison in enumerate(comparisons)
    )
    ids = [comparison.pk for comparison in comparisons]
    Comparison.objects.filter(pk__in=ids).update(open_slots=comparisons[0].overlap - 1)


def strategy(project: Project, control_share: float) -> None:
    project.acquisition = AcquisitionStrategy.UNCERTAINTY
    project.control_share = control_share
    project.save()


# What comes first


def test_the_strategys_score_decides_within_round_and_priority(project: Project, alice: User):
    strategy(project, 0.0)
    scored = [factories.make_comparison(project) for _ in range(4)]
    for comparison, score in zip(scored, (0.1, 0.9, -1.0, 0.5), strict=True):
        Comparison.objects.filter(pk=comparison.pk).update(acquisition_score=score)
    urgent = factories.make_comparison(project, priority=1)
    met = work(project, alice, 5)
    assert [assignment.comparison for assignment in met] == [
        urgent,
        scored[1],
        scored[3],
        scored[0],
        scored[2],
    ]
    assert {assignment.arm for assignment in met} == {AcquisitionArm.STRATEGY}


def test_by_age_there_is_no_arm(project: Project, alice: User):
    project.control_share = 1.0
    project.save()
    oldest, newer = factories.make_comparison(project), factories.make_comparison(project)
    met = work(project, alice, 2)
    assert [assignment.comparison for assignment in met] == [oldest, newer]
    assert {assignment.arm for assignment in met} == {""}


def test_the_control_arm_is_drawn_at_random_from_the_newest_round(project: Project, alice: User):
    strategy(project, 1.0)
    many(project, 20, round_number=1)
    newest = many(project, 200, round_number=2)
    Comparison.objects.filter(pk__in=[comparison.pk for comparison in newest[:100]]).update(
        acquisition_score=1.0
    )
    met = work(project, alice, 60)
    assert {assignment.arm for assignment in met} == {AcquisitionArm.CONTROL}
    assert {assignment.comparison.round_number for assignment in met} == {2}
    # Of 60 from two halves: outside of 15 to 45 with a chance below 1 in 5,000. By score it would be 60.
    low = sum(assignment.comparison.acquisition_score == 0 for assignment in met)
    assert 15 <= low <= 45


def test_the_share_of_control_is_about_what_the_project_says(project: Project, alice: User):
    strategy(project, 0.3)
    many(project, 110)
    arms = Counter(assignment.arm for assignment in work(project, alice, 100))
    # Binomial with n = 100, p = 0.3: outside of 12 to 48 with a chance below 1 in 10,000.
    assert 12 <= arms[AcquisitionArm.CONTROL] <= 48
    assert arms.total() == 100


def test_control_wraps_around_and_leaves_nothing_behind(project: Project, alice: User):
    strategy(project, 1.0)
    made = many(project, 11)
    # All shuffle numbers but one lie at the very beginning: nearly every draw starts behind them.
    Comparison.objects.filter(project=project).update(shuffle=0)
    Comparison.objects.filter(pk=made[0].pk).update(shuffle=2**31 - 1)
    assert len({assignment.comparison_id for assignment in work(project, alice, 11)}) == 11
    assert assign_next(project=project, annotator=alice) is None


# Overlap


def test_a_share_of_comparisons_gets_more_annotators_and_always_the_same(project: Project):
    project.overlap, project.extra_overlap, project.extra_overlap_share = 2, 3, 0.25
    sets = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(2000)]
    drawn = Counter(overlap_of(project, completion_set) for completion_set in sets)
    # Binomial with n = 2000, p = 0.25: 500 ± 5 standard deviations of 19.4.
    assert set(drawn) == {2, 5}
    assert 403 <= drawn[5] <= 597
    assert [overlap_of(project, completion_set) for completion_set in sets] == [
        overlap_of(project, completion_set) for completion_set in sets[:]
    ]


@pytest.mark.parametrize(("share", "overlap"), [(0.0, 2), (1.0, 5)])
def test_overlap_is_decided_when_a_comparison_is_made(project: Project, share: float, overlap: int):
    project.overlap, project.extra_overlap, project.extra_overlap_share = 2, 3, share
    project.save()
    comparison = factories.make_comparison(project)
    assert (comparison.overlap, comparison.open_slots) == (overlap, overlap)


# The walk


def steps_of_next(project: Project, annotator: User) -> int:
    """In how many steps of its machine SQLite finds the next comparison; other databases do not tell."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    tells = connection.vendor == "sqlite"
    connection.ensure_connection()
    if tells:
        connection.connection.set_progress_handler(count, 10)
    try:
        assert first_open(project, annotator) is not None
    finally:
        if tells:
            connection.connection.set_progress_handler(None, 0)
    assert steps > 0 or not tells
    return steps


def test_the_walk_is_as_short_for_who_has_judged_many_that_are_still_open(project: Project, alice: User):
    project.overlap = 2
    project.save()
    made = many(project, 1500)
    had(alice, made[:100])
    short = steps_of_next(project, alice)
    had(alice, made[100:1400])
    assert steps_of_next(project, alice) <= short * 1.2
    assert first_open(project, alice) == made[1400]


def test_the_walk_is_as_short_among_many_open_as_among_few(project: Project, alice: User):
    many(project, 100)
    short = steps_of_next(project, alice)
    many(project, 1500, round_number=2)
    assert steps_of_next(project, alice) <= short * 1.2


def test_the_walk_is_as_short_where_every_comparison_has_its_own_score(project: Project, alice: User):
    strategy(project, 0.0)
    project.overlap = 2
    project.save()
    made = many(project, 1500)
    for place, comparison in enumerate(made):
        comparison.acquisition_score = -float(place)
    Comparison.objects.bulk_update(made, ["acquisition_score"], batch_size=500)
    had(alice, made[:100])
    short = steps_of_next(project, alice)
    had(alice, made[100:1400])
    assert steps_of_next(project, alice) <= short * 1.2
    assert first_open(project, alice) == made[1400]


def test_what_is_new_and_urgent_comes_first_however_much_one_has_judged(project: Project, alice: User):
    project.overlap = 2
    project.save()
    made = many(project, 120)
    had(alice, made[:100])
    urgent = factories.make_comparison(project, priority=1)
    assert first_open(project, alice) == urgent
    new_round = factories.make_comparison(project, round_number=2)
    assert first_open(project, alice) == new_round


def test_what_comes_free_before_ones_place_is_found_when_nothing_is_left_behind(
    project: Project, alice: User, bob: User
):
    project.overlap = 2
    project.save()
    made = many(project, 120)
    gone = made[70]
    Comparison.objects.filter(pk=gone.pk).update(open_slots=0)
    had(alice, made[:70] + made[71:119])
    assert lease(project, alice).comparison == made[119]
    answer(lease(project, alice))
    assert assign_next(project=project, annotator=alice) is None
    Comparison.objects.filter(pk=gone.pk).update(open_slots=1)
    assert lease(project, alice).comparison == gone


def test_the_walk_goes_on_behind_ones_place_through_priorities_and_rounds(project: Project, alice: User):
    project.overlap = 2
    project.save()
    high = many(project, 60, round_number=3, priority=5)
    had(alice, high)
    low = many(project, 1, round_number=3, priority=1)
    assert first_open(project, alice) == low[0]
    had(alice, low)
    older = many(project, 1, round_number=2, priority=9)
    assert first_open(project, alice) == older[0]


def test_the_walks_along_the_queue_never_sort(project: Project, alice: User):
    """A sort would read all of 100,000 open comparisons."""
    for plan in (
        open_to(project, alice).order_by(*QUEUE_ORDER).explain(),
        open_to(project, alice).filter(round_number=1, priority__lt=0).order_by(*QUEUE_ORDER).explain(),
        open_to(project, alice).filter(round_number=1, shuffle__gte=5).order_by("shuffle").explain(),
    ):
        assert "TEMP B-TREE" not in plan
        if connection.vendor == "sqlite":
            assert "comparison_open_" in plan


def test_the_search_for_leases_that_ran_out_begins_at_the_leases(project: Project, alice: User):
    """They are few; the comparisons of a project are many, and each next comparison looks here first."""
    plan = stale_leases(project, timezone.now()).explain()
    assert "TEMP B-TREE" not in plan
    if connection.vendor == "sqlite":
        assert plan.splitlines()[0].endswith("USING INDEX assignment_lease_end (lease_expires_at<?)")


# What it costs


@pytest.mark.parametrize("overlap", [1, 2])
def test_a_new_lease_costs_few_queries(
    project: Project, alice: User, bob: User, overlap: int, django_assert_max_num_queries
):
    project.overlap = overlap
    project.save()
    many(project, 3)
    lease(project, bob)
    # Membership, stale leases, savepoint, turn, what is held, first open comparison, its place, its
    # completions, their order, the lease, savepoint; with more places than one also the head of
    # the queue and who holds the other places.
    with django_assert_max_num_queries(11 if overlap == 1 else 13):
        lease(project, alice)


def test_what_one_holds_costs_few_queries(project: Project, alice: User, django_assert_max_num_queries):
    many(project, 3)
    lease(project, alice)
    # As above, but what is held comes in two: the lease, then its comparison and prompt.
    with django_assert_max_num_queries(8):
        lease(project, alice)


def test_released_and_skipped_work_costs_no_place(project: Project, alice: User, bob: User):
    project.overlap = 2
    project.save()
    (only,) = many(project, 1)
    release_assignment(assignment=lease(project, alice), annotator=alice)
    skip_assignment(assignment=lease(project, alice), annotator=alice, reason="")
    only.refresh_from_db()
    assert only.open_slots == 2
    assert lease(project, bob).slot == 0
