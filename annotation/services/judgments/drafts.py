"""Keep drafts of annotations, and have a model continue texts, before anything is submitted."""

import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import AssignmentState
from annotation.errors import InvalidAnswer, LeaseLost, NotAllowed, Refusal, Unavailable
from annotation.models import Assignment, Completion, Continuation, Draft, Judgment, User
from annotation.services.judgments.checks import check_text

# ── Drafts ──────────────────────────────────────────────────────────────────────────────


MOST_IN_A_DRAFT: Final = 500_000
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
    if Judgment.everything.filter(assignment=assignment, idempotency_key=saved_from).exists() or (
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
    if sum(len(name) + sum(map(len, values)) for name, values in clean.items()) > MOST_IN_A_DRAFT:
        raise InvalidAnswer(
            "draft_too_long",
            _("This draft is too long to be stored. Shorten what you wrote."),
            field="fields",
        )
    return clean


def _text(value: str) -> str:
    return value.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")


# ── Continuations ───────────────────────────────────────────────────────────────────────


LONGEST_PREFIX: Final = 100_000
"""Characters of the text that a model continues."""
MOST_OF_ONE: Final = 100
"""Continuations that one person may ask for in one comparison."""
_SEEDS = 2**31


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A model's continuation and where it comes from."""

    text: str
    seed: int | None
    sampling: Mapping[str, Any]
    finish_reason: str


class ContinuationWriter(Protocol):
    """Asks models to continue responses."""

    def can_continue(self, completions: Sequence[Completion]) -> bool:
        """Return whether a model that answers now wrote each of them."""

    def continue_response(self, completion: Completion, prefix: str, *, seed: int) -> Written:
        """Return what follows the prefix, by the model that wrote the completion. Raises `Unavailable`."""


_registered: list[ContinuationWriter] = []


def register(writer: ContinuationWriter) -> None:
    """Have this one write from now on."""
    _registered[:] = [writer]


def is_offered(assignment: Assignment) -> bool:
    """Return whether every response of an assignment can be continued.

    All or none: that one cannot be would tell responses of checkpoints from others.
    """
    if not (_registered and assignment.comparison.project.ask_correction):
        return False
    completions = Completion.objects.select_related("source", "prompt").filter(
        pk__in=assignment.display_order
    )
    return _registered[0].can_continue(list(completions))


def continue_response(
    *, assignment: Assignment, annotator: User, completion_id: int, prefix: str
) -> Continuation:
    """Have the model that wrote a response go on from `prefix`, with a new seed, and store what it wrote.

    The model is asked outside of any transaction. Refuses another person's assignment (`NotAllowed`), one
    that is closed (`LeaseLost`), an empty or too long prefix (`InvalidAnswer`); `Unavailable` where no model
    is served.
    """
    if assignment.annotator_id != annotator.pk:
        raise NotAllowed("assigned_to_another", _("This comparison was given to someone else."))
    if assignment.state not in (AssignmentState.LEASED, AssignmentState.SUBMITTED):
        raise LeaseLost("lease_lost", _("This comparison is no longer yours. Go on with the next one."))
    check_text(prefix, "prefix")
    if not prefix.strip() or len(prefix) > LONGEST_PREFIX:
        raise InvalidAnswer(
            "rewrite_missing", _("Rewrite at least a word before the model continues."), field="prefix"
        )
    if assignment.continuations.count() >= MOST_OF_ONE:
        raise InvalidAnswer(
            "too_many_continuations",
            _("The model has continued this comparison %(most)s times. Write the rest yourself."),
            field="prefix",
            most=MOST_OF_ONE,
        )
    if not is_offered(assignment):
        raise Unavailable(
            "no_model_continues", _("No model is served that could continue. Write the rest yourself.")
        )
    completion = Completion.objects.select_related("source", "prompt").get(pk=completion_id)
    written = _registered[0].continue_response(completion, prefix, seed=secrets.randbelow(_SEEDS))
    return Continuation.objects.create(
        assignment=assignment,
        completion=completion,
        prefix=prefix,
        text=written.text.replace("\x00", "\ufffd"),
        seed=written.seed,
        sampling=dict(written.sampling),
        finish_reason=written.finish_reason,
    )
