"""The final pass over a comparison: suggestions in sight, each accepted, changed or rejected."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from annotation.choices import SuggestionDecision
from annotation.errors import AnsweredElsewhere, InvalidAnswer, NotAllowed
from annotation.models import (
    DecidedSuggestion,
    Guideline,
    HelpReveal,
    Judgment,
    RubricVersion,
    Suggestion,
    User,
)
from annotation.record.judgment import JudgmentRecord
from annotation.selectors.suggestions import suggestions_for
from annotation.services.judgments.submission import submit_in_transaction
from annotation.services.suggestions.applying import contains, with_accepted


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionInput:
    """An annotator's decision on one suggestion."""

    suggestion_id: int
    decision: str
    seconds: float | None = None
    """Since the suggestions were shown, or the decision before; None where it was not measured."""
    decided_at: datetime | None = None
    """By the clock of the browser; None for the time of the submission."""


def finish_help(
    *,
    reveal: HelpReveal,
    annotator: User,
    answer: JudgmentRecord,
    decisions: Sequence[DecisionInput],
    idempotency_key: uuid.UUID,
    guideline: Guideline | None = None,
    rubric: RubricVersion | None = None,
    is_applied: bool = False,
) -> Judgment:
    """Store the final pass and every decision, together or not at all. Twice with one key is once.

    `is_applied`: the page has put accepted suggestions into the answer already; one that is not in it was
    changed. Else they are added here. Refuses another person's reveal (`NotAllowed`), a suggestion without a
    decision, and whatever `submit_judgment` refuses.
    """
    try:
        with transaction.atomic():
            return _finish(
                reveal=reveal,
                annotator=annotator,
                answer=answer,
                decisions=decisions,
                idempotency_key=idempotency_key,
                guideline=guideline,
                rubric=rubric,
                is_applied=is_applied,
            )
    except IntegrityError:
        twin = Judgment.objects.filter(idempotency_key=idempotency_key).first()
        if twin is None or twin.assignment_id != reveal.assignment_id:
            raise
        return twin


def _finish(
    *,
    reveal: HelpReveal,
    annotator: User,
    answer: JudgmentRecord,
    decisions: Sequence[DecisionInput],
    idempotency_key: uuid.UUID,
    guideline: Guideline | None,
    rubric: RubricVersion | None,
    is_applied: bool,
) -> Judgment:
    locked = HelpReveal.objects.select_for_update(no_key=True).get(pk=reveal.pk)
    assignment = reveal.assignment
    if assignment.annotator_id != annotator.pk:
        raise NotAllowed("assigned_to_another", _("This comparison was given to someone else."))
    if locked.finished_at is not None:
        return _require_same(locked, idempotency_key)
    suggestions = {row.pk: row for row in suggestions_for(assignment.comparison)}
    decided = _check_decisions(decisions, suggestions)
    accepted = [
        suggestions[pk]
        for pk, decision in decided.items()
        if decision.decision == SuggestionDecision.ACCEPTED
    ]
    if not is_applied:
        answer = with_accepted(answer, accepted, asks_strength=assignment.comparison.project.ask_strength)
    now = timezone.now()
    locked.finished_at = now
    locked.save(update_fields=["finished_at"])
    judgment, _turn = submit_in_transaction(
        assignment=assignment,
        annotator=annotator,
        answer=answer,
        idempotency_key=idempotency_key,
        guideline=guideline,
        rubric=rubric,
        stands_on=locked.first_judgment_id,
    )
    locked.final_judgment = judgment
    locked.save(update_fields=["final_judgment"])
    DecidedSuggestion.objects.bulk_create(
        _decided(locked, suggestions[pk], decision, answer, now) for pk, decision in decided.items()
    )
    reveal.finished_at = now
    return judgment


def _require_same(locked: HelpReveal, idempotency_key: uuid.UUID) -> Judgment:
    final = locked.final_judgment
    if final is None or final.idempotency_key != idempotency_key:
        raise AnsweredElsewhere(
            "submitted_since",
            _("You have submitted another annotation of this comparison since this page was opened."),
        )
    return final


def _check_decisions(
    decisions: Sequence[DecisionInput], suggestions: Mapping[int, Suggestion]
) -> dict[int, DecisionInput]:
    decided = {decision.suggestion_id: decision for decision in decisions}
    if len(decided) < len(decisions) or decided.keys() - suggestions.keys():
        raise InvalidAnswer(
            "unknown_suggestion",
            _("A decision refers to a suggestion that is not shown. Reload the page."),
            field="suggestions",
        )
    if any(decision.decision not in SuggestionDecision.values for decision in decisions):
        raise InvalidAnswer(
            "suggestion_undecided", _("Accept, change or reject each suggestion."), field="suggestions"
        )
    if left := len(suggestions) - len(decided):
        message = ngettext(
            "Accept, change or reject each suggestion: %(left)s is left.",
            "Accept, change or reject each suggestion: %(left)s are left.",
            left,
        )
        raise InvalidAnswer("suggestion_undecided", message, field="suggestions", left=left)
    return decided


def _decided(
    reveal: HelpReveal,
    suggestion: Suggestion,
    decision_input: DecisionInput,
    answer: JudgmentRecord,
    now: datetime,
) -> DecidedSuggestion:
    decision = decision_input.decision
    if decision == SuggestionDecision.ACCEPTED and not contains(answer, suggestion):
        decision = SuggestionDecision.CHANGED
    at = min(max(decision_input.decided_at or now, reveal.revealed_at), now)
    # No decision took longer than the page was there.
    longest = (now - reveal.revealed_at).total_seconds()
    seconds = None if decision_input.seconds is None else min(max(decision_input.seconds, 0.0), longest)
    return DecidedSuggestion(
        reveal=reveal, suggestion=suggestion, decision=decision, seconds=seconds, decided_at=at
    )
