"""The qualification set: items with known answers, to be passed before real work."""

from django.db.models import Exists, OuterRef
from django.utils import timezone

from annotation.choices import AssignmentState, Purpose, QualificationState
from annotation.models import Assignment, Comparison, Membership, Project, User
from annotation.selectors import eligibility
from annotation.selectors.access import SPENT_STATES


def next_qualification_item(*, project: Project, annotator: User) -> Comparison | None:
    """The first item of the set that this person has neither answered nor skipped, in their order."""
    had = Assignment.objects.filter(comparison=OuterRef("pk"), annotator=annotator, state__in=SPENT_STATES)
    items = Comparison.objects.filter(~Exists(had), project=project, purpose=Purpose.QUALIFICATION)
    return items.select_related("prompt").order_by("id").first()


def settle_qualification(*, assignment: Assignment) -> None:
    """After an item of the set was answered or skipped: let its annotator in if they have passed.

    Call it in the transaction of the answer. Does nothing for other comparisons.
    """
    if assignment.comparison.purpose == Purpose.QUALIFICATION and assignment.state in (
        AssignmentState.SUBMITTED,
        AssignmentState.SKIPPED,
    ):
        let_in_if_passed(project=assignment.comparison.project, annotator=assignment.annotator)


def let_in_if_passed(*, project: Project, annotator: User) -> bool:
    """Set `qualified_at` of who has passed; whether work is open to them now."""
    qualification = eligibility.qualification_of(project, annotator)
    if qualification.state == QualificationState.PASSED:
        Membership.objects.filter(project=project, user=annotator, qualified_at__isnull=True).update(
            qualified_at=timezone.now()
        )
    return qualification.state in (QualificationState.PASSED, QualificationState.NOT_ASKED)
