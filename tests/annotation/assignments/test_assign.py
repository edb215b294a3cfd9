"""Assignment: the next comparison for each annotator, and the order in which they see its completions."""

import itertools
from collections import Counter
from datetime import timedelta

import pytest
from django.utils import timezone

from annotation.choices import AssignmentState, Role
from annotation.errors import LeaseLost, NotAllowed
from annotation.models import Assignment, Comparison, Project, User
from annotation.services.assignments.display_order import candidate_token, tokens_of
from annotation.services.assignments.leases import (
    expire_leases,
    release_assignment,
    renew_lease,
    skip_assignment,
)
from annotation.services.assignments.next import assign_next
from annotation.services.projects.projects import add_member
from tests import factories
from tests.annotation.labelling.work import lease
from tests.refusals import refused

pytestmark = pytest.mark.django_db


def let_time_run_out(assignment: Assignment) -> None:
    Assignment.objects.filter(pk=assignment.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))


def open_slots(comparison: Comparison) -> int:
    return Comparison.objects.get(pk=comparison.pk).open_slots


def test_the_newest_round_comes_first_then_priority_then_age(project: Project, alice: User):
    old_round = factories.make_comparison(project, round_number=1, priority=9)
    plain = factories.make_comparison(project, round_number=2)
    later = factories.make_comparison(project, round_number=2)
    urgent = factories.make_comparison(project, round_number=2, priority=1)
    met = []
    while (assignment := assign_next(project=project, annotator=alice)) is not None:
        met.append(assignment.comparison)
        skip_assignment(assignment=assignment, annotator=alice, reason="next")
    assert met == [urgent, plain, later, old_round]


def test_who_asks_again_gets_the_comparison_that_they_hold(project: Project, alice: User):
    factories.make_comparison(project)
    factories.make_comparison(project)
    assert lease(project, alice).pk == lease(project, alice).pk
    assert Assignment.objects.count() == 1


def test_a_second_annotator_never_gets_a_full_comparison(project: Project, alice: User, bob: User):
    comparison = factories.make_comparison(project)
    lease(project, alice)
    assert open_slots(comparison) == 0
    assert assign_next(project=project, annotator=bob) is None


def test_as_many_annotators_get_a_comparison_as_overlap_says(project: Project, alice: User, bob: User):
    project.overlap = 2
    project.save()
    comparison = factories.make_comparison(project)
    carl = factories.make_user("carl")
    add_member(project=project, user=carl)
    assert {lease(project, alice).slot, lease(project, bob).slot} == {0, 1}
    assert assign_next(project=project, annotator=carl) is None
    assert open_slots(comparison) == 0


def test_what_was_judged_does_not_come_back_to_the_same_person(project: Project, alice: User):
    project.overlap = 2
    project.save()
    comparison = factories.make_comparison(project)
    factories.make_judgment(comparison, alice)
    assert open_slots(comparison) == 1
    assert assign_next(project=project, annotator=alice) is None


def test_what_was_skipped_goes_to_others_and_not_back(project: Project, alice: User, bob: User):
    comparison = factories.make_comparison(project)
    skipped = lease(project, alice)
    skip_assignment(assignment=skipped, annotator=alice, reason="I do not read Latin.")
    skipped.refresh_from_db()
    assert (skipped.state, skipped.reason) == (AssignmentState.SKIPPED, "I do not read Latin.")
    assert assign_next(project=project, annotator=alice) is None
    assert lease(project, bob).comparison == comparison


def test_what_was_given_back_may_come_again(project: Project, alice: User):
    comparison = factories.make_comparison(project)
    release_assignment(assignment=lease(project, alice), annotator=alice)
    assert lease(project, alice).comparison == comparison


def test_skipping_or_giving_back_twice_frees_one_place(project: Project, alice: User):
    comparison = factories.make_comparison(project)
    assignment = lease(project, alice)
    for _ in range(2):
        release_assignment(assignment=assignment, annotator=alice)
    assert open_slots(comparison) == 1


def test_a_lease_that_ran_out_goes_to_the_next_who_asks(project: Project, alice: User, bob: User):
    comparison = factories.make_comparison(project)
    lost = lease(project, alice)
    let_time_run_out(lost)
    assert lease(project, bob).comparison == comparison
    lost.refresh_from_db()
    assert lost.state == AssignmentState.EXPIRED
    assert open_slots(comparison) == 0
    assert assign_next(project=project, annotator=alice) is None


def test_a_lease_that_ran_out_comes_back_to_its_owner_when_nobody_else_asked(project: Project, alice: User):
    factories.make_comparison(project)
    lost = lease(project, alice)
    let_time_run_out(lost)
    again = lease(project, alice)
    assert again.comparison == lost.comparison
    assert again.lease_expires_at > timezone.now()


def test_a_lease_runs_as_long_as_the_project_says_and_can_be_renewed(project: Project, alice: User):
    project.lease_minutes = 5
    project.save()
    factories.make_comparison(project)
    before = timezone.now()
    assignment = lease(project, alice)
    assert (
        before + timedelta(minutes=5) <= assignment.lease_expires_at <= timezone.now() + timedelta(minutes=5)
    )
    first_end = assignment.lease_expires_at
    renewed = renew_lease(assignment=assignment, annotator=alice)
    assert renewed.lease_expires_at > first_end
    assert Assignment.objects.get(pk=assignment.pk).lease_expires_at == renewed.lease_expires_at


def test_expiring_tells_how_many_came_back_and_takes_only_what_ran_out(
    project: Project, alice: User, bob: User
):
    factories.make_comparison(project)
    factories.make_comparison(project)
    let_time_run_out(lease(project, alice))
    fresh = lease(project, bob)
    # Bob's call took Alice's lease back already; let his own run out in an hour from now.
    assert expire_leases(project=project) == 0
    assert expire_leases(project=project, now=timezone.now() + timedelta(hours=1)) == 1
    fresh.refresh_from_db()
    assert fresh.state == AssignmentState.EXPIRED


def test_a_lease_that_is_over_cannot_be_renewed_or_skipped(project: Project, alice: User):
    factories.make_comparison(project)
    assignment = lease(project, alice)
    let_time_run_out(assignment)
    expire_leases(project=project)
    with refused("lease_lost", LeaseLost):
        renew_lease(assignment=assignment, annotator=alice)
    with refused("lease_lost", LeaseLost):
        skip_assignment(assignment=assignment, annotator=alice, reason="")


def test_what_is_submitted_cannot_be_skipped(project: Project, alice: User):
    judgment = factories.make_judgment(factories.make_comparison(project), alice)
    with refused("comparison_submitted"):
        skip_assignment(assignment=judgment.assignment, annotator=alice, reason="")
    assert open_slots(judgment.comparison) == 0


def test_nobody_touches_the_lease_of_another(project: Project, alice: User, bob: User):
    factories.make_comparison(project)
    assignment = lease(project, alice)
    for touch in (renew_lease, release_assignment):
        with refused("assigned_to_another", NotAllowed):
            touch(assignment=assignment, annotator=bob)
    with refused("assigned_to_another", NotAllowed):
        skip_assignment(assignment=assignment, annotator=bob, reason="")
    assignment.refresh_from_db()
    assert assignment.state == AssignmentState.LEASED


def test_an_outsider_gets_no_work_and_every_member_does(
    project: Project, alice: User, carol: User, oscar: User
):
    factories.make_comparison(project)
    with refused("not_an_annotator", NotAllowed, annotator="oscar"):
        assign_next(project=project, annotator=oscar)
    assert Assignment.objects.count() == 0
    assert assign_next(project=project, annotator=carol) is not None
    add_member(project=project, user=oscar, role=Role.REVIEWER)
    assert assign_next(project=project, annotator=oscar) is None  # Carol holds the only one


def test_comparisons_of_another_project_are_not_handed_out(project: Project, alice: User):
    other = factories.make_project(slug="coffee")
    factories.make_comparison(other)
    assert assign_next(project=project, annotator=alice) is None


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_completion_stands_in_every_position_equally_often(project: Project, alice: User, size: int):
    positions: Counter[tuple[int, int]] = Counter()
    for _ in range(3 * size):  # three whole blocks
        comparison = factories.make_comparison(project, [f"answer {n}" for n in range(size)])
        assignment = lease(project, alice)
        index_of = dict(comparison.candidates.values_list("completion_id", "index"))
        assert sorted(assignment.display_order) == sorted(index_of)
        positions.update((index_of[pk], place) for place, pk in enumerate(assignment.display_order))
        release_assignment(assignment=assignment, annotator=alice)
        skip_assignment(assignment=lease(project, alice), annotator=alice, reason="")
        # The second lease drew an order too; it counts as well.
        second = comparison.assignments.latest("id")
        positions.update((index_of[pk], place) for place, pk in enumerate(second.display_order))
    expected = dict.fromkeys(itertools.product(range(size), repeat=2), 6)
    assert positions == expected


def test_pairs_and_rankings_are_balanced_apart(project: Project, alice: User):
    first_of_pairs = []
    for _ in range(4):
        for texts in (["a", "b"], ["a", "b", "c", "d"]):
            comparison = factories.make_comparison(project, texts)
            assignment = lease(project, alice)
            if comparison.size == 2:
                index_of = dict(comparison.candidates.values_list("completion_id", "index"))
                first_of_pairs.append(index_of[assignment.display_order[0]])
            skip_assignment(assignment=assignment, annotator=alice, reason="")
    assert Counter(first_of_pairs) == {0: 2, 1: 2}


def test_orders_of_pairs_do_not_simply_alternate(project: Project, alice: User):
    firsts: list[bool] = []
    blocks: set[tuple[bool, ...]] = set()
    # Twenty fair blocks are all the same with a chance of 2 in 2**20; two of them differ soon.
    while len(blocks) < 2:
        assert len(firsts) < 40
        for _ in range(2):
            comparison = factories.make_comparison(project)
            assignment = lease(project, alice)
            firsts.append(assignment.display_order[0] == comparison.candidates.get(index=0).completion_id)
            skip_assignment(assignment=assignment, annotator=alice, reason="")
        blocks.add(tuple(firsts[-2:]))
    assert blocks == {(True, False), (False, True)}


def test_tokens_name_completions_on_one_assignment_only(project: Project, alice: User, bob: User):
    project.overlap = 2
    project.save()
    factories.make_comparison(project)
    assignment, other_assignment = lease(project, alice), lease(project, bob)
    tokens = tokens_of(assignment)
    assert list(tokens.values()) == assignment.display_order
    assert tokens == {candidate_token(assignment, pk): pk for pk in assignment.display_order}
    assert not set(tokens) & set(tokens_of(other_assignment))
    assert not any(str(pk) == token for token, pk in tokens.items())
