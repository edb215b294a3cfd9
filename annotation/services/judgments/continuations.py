"""Continuations: the model that wrote a response goes on from an annotator's rewrite.

Models belong to `training`, which this application does not know: `training.apps` registers who writes.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from django.utils.translation import gettext as _

from annotation.choices import AssignmentState
from annotation.errors import InvalidAnswer, LeaseLost, NotAllowed, Unavailable
from annotation.models import Assignment, Completion, Continuation, User
from annotation.services.judgments.checks import check_text

MOST_CHARACTERS = 100_000
MOST_OF_ONE = 100
"""Continuations that one person may ask for in one comparison."""
_SEEDS = 2**31


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A model's continuation and where it comes from."""

    text: str
    seed: int | None
    sampling: Mapping[str, Any]
    finish_reason: str


class Writer(Protocol):
    """Asks models to continue responses."""

    def can_continue(self, completions: Sequence[Completion]) -> bool:
        """Return whether a model that answers now wrote each of them."""

    def continue_response(self, completion: Completion, prefix: str, *, seed: int) -> Written:
        """Return what follows the prefix, by the model that wrote the completion. Raises `Unavailable`."""


_registered: list[Writer] = []


def register(writer: Writer) -> None:
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
    if not prefix.strip() or len(prefix) > MOST_CHARACTERS:
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
