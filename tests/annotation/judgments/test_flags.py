"""A flag goes to reviewers and leaves the comparison where it is."""

import pytest

from annotation.choices import AssignmentState, Purpose, ReviewReason
from annotation.errors import InvalidAnswer, LeaseLost, NotAllowed
from annotation.models import Assignment, Comparison, ItemFlag, Review, User
from annotation.services.assignments.leases import skip_assignment
from annotation.services.judgments.submission import flag_item
from tests.refusals import refused

pytestmark = pytest.mark.django_db


def test_a_flag_opens_a_review_and_the_comparison_stays_in_hand(assignment: Assignment, alice: User):
    flag = flag_item(assignment=assignment, annotator=alice, reason=" broken ", details="no text")
    assert (flag.reason, flag.details) == ("broken", "no text")
    review = Review.objects.get()
    assert (review.comparison, review.reason) == (assignment.comparison, ReviewReason.FLAGGED)
    assignment.refresh_from_db()
    assert assignment.state == AssignmentState.LEASED


def test_the_same_report_sent_twice_is_one_and_another_reason_is_another(assignment: Assignment, alice: User):
    for reason in ("broken", "broken", "harmful"):
        flag_item(assignment=assignment, annotator=alice, reason=reason)
    assert sorted(ItemFlag.objects.values_list("reason", flat=True)) == ["broken", "harmful"]
    assert Review.objects.count() == 1


def test_a_flag_on_a_known_item_is_noted_and_not_reviewed(assignment: Assignment, alice: User):
    Comparison.objects.update(purpose=Purpose.GOLD, open_slots=0)
    flag_item(assignment=assignment, annotator=alice, reason="broken")
    assert ItemFlag.objects.count() == 1
    assert not Review.objects.exists()


def test_who_does_not_have_it_cannot_flag_it(assignment: Assignment, alice: User, bob: User):
    with refused("assigned_to_another", NotAllowed):
        flag_item(assignment=assignment, annotator=bob, reason="broken")
    skip_assignment(assignment=assignment, annotator=alice, reason="broken")
    with refused("lease_lost", LeaseLost):
        flag_item(assignment=assignment, annotator=alice, reason="broken")
    assert not ItemFlag.objects.exists()


@pytest.mark.parametrize(
    ("report", "field"), [({"reason": " "}, "reason"), ({"reason": "x", "details": "\x00"}, "details")]
)
def test_a_flag_needs_a_reason_that_can_be_stored(
    report: dict[str, str], field: str, assignment: Assignment, alice: User
):
    with pytest.raises(InvalidAnswer) as refusal:
        flag_item(assignment=assignment, annotator=alice, **report)
    assert refusal.value.field == field
