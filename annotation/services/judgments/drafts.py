"""Drafts: what stands in the fields of a labelling page before it is submitted, kept on the server."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import AssignmentState
from annotation.errors import InvalidAnswer, LeaseLost, NotAllowed, Refusal
from annotation.models import Assignment, Draft, Judgment, User

MOST_CHARACTERS: Final = 500_000
"""Longer than all that one page can hold; what is longer was not typed by a person."""


class DraftConflict(Refusal):
    """Another page saved a draft of the same assignment since. `stored` is it; None when it is gone."""

    def __init__(self, *, stored: Draft | None) -> None:
        message = _("Another page has saved this comparison since. Choose which of both stays.")
        super().__init__("draft_conflict", message)
        self.stored = stored


def save_draft(
    *,
    assignment: Assignment,
    annotator: User,
    fields: Mapping[str, Sequence[str]],
    base_version: int,
    saved_from: uuid.UUID,
    is_revision: bool = False,
) -> Draft:
    """Store what stands in the fields, as the successor of version `base_version` (0: the first).

    - The same save sent twice is one save.
    - Refuses with `DraftConflict`, carrying what is stored, when that is no longer `base_version`.
    - Refuses with `LeaseLost` once the page is submitted or its comparison is gone: a save that
      was under way while the answer was submitted must not come back as a draft of it.
      `is_revision` says that the page changes a submitted answer.
    - Refuses another person's assignment (`NotAllowed`) and what no page sends (`InvalidAnswer`).
    """
    clean = _cleaned(fields)
    with transaction.atomic():
        locked = Assignment.objects.select_for_update(no_key=True).get(pk=assignment.pk)
        _require_open(locked, annotator, saved_from, is_revision)
        if base_version == 0:
            return _first(locked, clean, saved_from)
        return _next(locked, clean, base_version, saved_from)


def discard_draft(*, assignment: Assignment) -> None:
    """Forget the draft of an assignment; part of the transaction that submits it."""
    Draft.objects.filter(assignment=assignment).delete()


def _require_open(assignment: Assignment, annotator: User, saved_from: uuid.UUID, is_revision: bool) -> None:
    if assignment.annotator_id != annotator.pk:
        raise NotAllowed("assigned_to_another", _("This comparison was given to someone else."))
    expected = AssignmentState.SUBMITTED if is_revision else AssignmentState.LEASED
    # A page submits under its own name, so what it still says afterwards is known by it.
    if Judgment.objects.filter(assignment=assignment, idempotency_key=saved_from).exists() or (
        assignment.state == AssignmentState.SUBMITTED and not is_revision
    ):
        raise LeaseLost(
            "comparison_submitted", _("This comparison is submitted. Open it again to change the annotation.")
        )
    if assignment.state != expected:
        raise LeaseLost("lease_lost", _("This comparison is no longer yours. Ask for the next one."))


def _first(assignment: Assignment, fields: dict[str, list[str]], saved_from: uuid.UUID) -> Draft:
    try:
        with transaction.atomic():
            return Draft.objects.create(assignment=assignment, fields=fields, saved_from=saved_from)
    except IntegrityError:
        return _same_or_conflict(assignment, fields, 0, saved_from)


def _next(
    assignment: Assignment, fields: dict[str, list[str]], base_version: int, saved_from: uuid.UUID
) -> Draft:
    changed = Draft.objects.filter(assignment=assignment, version=base_version).update(
        version=F("version") + 1, fields=fields, saved_from=saved_from, saved_at=timezone.now()
    )
    if changed != 1:
        return _same_or_conflict(assignment, fields, base_version, saved_from)
    return Draft.objects.get(assignment=assignment)


def _same_or_conflict(
    assignment: Assignment, fields: dict[str, list[str]], base_version: int, saved_from: uuid.UUID
) -> Draft:
    """Return the stored draft, when it is this very save come again; else the conflict."""
    stored = Draft.objects.filter(assignment=assignment).first()
    if stored and (stored.version, stored.saved_from, stored.fields) == (
        base_version + 1,
        saved_from,
        fields,
    ):
        return stored
    raise DraftConflict(stored=stored)


def _cleaned(fields: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """As text that every database takes: no NUL, no half of a surrogate pair."""
    try:
        clean = {_text(name): [_text(value) for value in values] for name, values in fields.items()}
    except (AttributeError, TypeError) as error:
        raise InvalidAnswer(
            "invalid_draft", _("A draft maps names of fields to lists of texts."), field="fields"
        ) from error
    if sum(len(name) + sum(map(len, values)) for name, values in clean.items()) > MOST_CHARACTERS:
        raise InvalidAnswer(
            "draft_too_long",
            _("This draft is too long to be stored. Shorten what you wrote."),
            field="fields",
        )
    return clean


def _text(value: str) -> str:
    return value.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")
