"""Record pastes into texts, where the project says so and annotators are told."""

import uuid

from django.db import transaction
from django.utils.translation import gettext as _

from annotation.choices import AssignmentState, WrittenIn
from annotation.errors import LeaseLost, NotAllowed, Refusal
from annotation.models import Assignment, PasteRecord, User
from annotation.models.pastes import LONGEST_PASTE

MOST_PASTES = 200
"""Of one assignment; later ones are not recorded."""


def record_paste(
    *,
    assignment: Assignment,
    annotator: User,
    key: uuid.UUID,
    field: WrittenIn,
    characters: int,
    is_on_screen: bool,
    completion_id: int | None = None,
) -> None:
    """Record that an annotator pasted text while they had a comparison in hand; sent twice it is one.

    Refuses another person's assignment (`NotAllowed`), one that is neither in hand nor submitted
    (`LeaseLost`), a response of another comparison, and a project that does not record.
    """
    if assignment.annotator_id != annotator.pk:
        raise NotAllowed("assigned_to_another", _("This comparison was given to someone else."))
    if not assignment.comparison.project.records_pastes:
        raise Refusal("pastes_not_recorded", _("This project does not record what is pasted."))
    if characters < 1:
        raise Refusal("paste_empty", _("Nothing was pasted."), field="characters")
    if completion_id is not None and completion_id not in assignment.display_order:
        raise Refusal(
            "unknown_response", _("The response belongs to another comparison."), field="completion"
        )
    with transaction.atomic():
        # Pastes of one assignment are counted one after another.
        locked = Assignment.objects.select_for_update(no_key=True).get(pk=assignment.pk)
        if locked.state not in (AssignmentState.LEASED, AssignmentState.SUBMITTED):
            raise LeaseLost(
                "lease_lost", _("You no longer have this comparison, so nothing is recorded for it.")
            )
        if PasteRecord.objects.filter(assignment=locked).count() >= MOST_PASTES:
            return
        PasteRecord.objects.get_or_create(
            key=key,
            defaults={
                "assignment": locked,
                "annotator": annotator,
                "field": field,
                "completion_id": completion_id,
                "characters": min(characters, LONGEST_PASTE),
                "is_on_screen": is_on_screen,
            },
        )
