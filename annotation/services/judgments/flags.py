"""Flags: reports of annotators during their work."""

from django.db import transaction
from django.utils.translation import gettext as _

from annotation.choices import AssignmentState, Purpose, ReviewReason
from annotation.errors import InvalidAnswer, LeaseLost, NotAllowed
from annotation.models import Assignment, ItemFlag, User
from annotation.services.quality.reviews import open_review


def flag_item(*, assignment: Assignment, annotator: User, reason: str, details: str = "") -> ItemFlag:
    """Report a comparison to reviewers. It stays in hand: a flag neither judges nor skips it.

    The same report sent twice is one. Refuses another person's assignment (`NotAllowed`), one that is
    neither in hand nor submitted (`LeaseLost`), and a report without a reason (`InvalidAnswer`).
    Gold and qualification items are noted but not reviewed: their answer is known.
    """
    reason, details = reason.strip(), details.strip()
    for name, text in (("reason", reason), ("details", details)):
        if "\x00" in text:
            raise InvalidAnswer(
                "text_holds_nul", _("The text holds the character NUL, which cannot be stored."), field=name
            )
    if not reason:
        raise InvalidAnswer("flag_reason_missing", _("Choose a reason."), field="reason")
    with transaction.atomic():
        locked = Assignment.objects.select_for_update(no_key=True).get(pk=assignment.pk)
        if locked.annotator_id != annotator.pk:
            raise NotAllowed("assigned_to_another", _("This comparison was given to someone else."))
        if locked.state not in (AssignmentState.LEASED, AssignmentState.SUBMITTED):
            raise LeaseLost(
                "lease_lost", _("You no longer have this comparison, so it cannot be flagged from here.")
            )
        known = locked.flags.filter(reason=reason, details=details).first()
        flag = known or ItemFlag.objects.create(assignment=locked, reason=reason, details=details)
        if locked.comparison.purpose == Purpose.WORK:
            open_review(comparison=locked.comparison, reason=ReviewReason.FLAGGED)
    return flag
