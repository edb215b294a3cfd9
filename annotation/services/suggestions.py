"""Suggestions: stored ahead, revealed after the first pass, decided in the final pass."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from annotation.choices import CategoryScope, SuggestionDecision, SuggestionKind, Verdict
from annotation.errors import AnsweredElsewhere, InvalidAnswer, NotAllowed, Refusal
from annotation.models import (
    Category,
    Comparison,
    Completion,
    DecidedSuggestion,
    Guideline,
    HelpReveal,
    HelpSettings,
    Judgment,
    Project,
    RubricVersion,
    Suggestion,
    SuggestionSet,
    User,
)
from annotation.record.judgment import CritiquePart, JudgmentRecord, MissingPart, SpanPart
from annotation.selectors import access
from annotation.selectors.configuration import configuration_of
from annotation.selectors.suggestions import suggestions_for
from annotation.services import audit
from annotation.services.judgments.checks import check_ranks, check_span, check_text, dense_ranks
from annotation.services.judgments.submission import submit_in_transaction

# Help of a project: switched on and off by its managers.


@transaction.atomic
def set_help(*, project: Project, is_active: bool, by: User, **values: Any) -> HelpSettings:
    """Switch help on or off, and give its settings other values. Arms that were drawn stay.

    `values` are fields of `HelpSettings`. Refuses who does not manage the project, and a value that a field
    does not accept, naming the field.
    """
    access.refuse_unless_manager(by, project, "manager_changes_suggestions")
    settings = HelpSettings.objects.filter(project=project).first() or HelpSettings(project=project)
    for name, value in values.items():
        setattr(settings, name, value)
    try:
        settings.full_clean(validate_unique=False)
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        raise Refusal(
            "invalid_suggestion_settings", " ".join(messages), field=None if field == "__all__" else field
        ) from None
    settings.save()
    project.has_help = is_active
    project.save(update_fields=["has_help"])
    audit.record(
        action="help.start" if is_active else "help.stop",
        subject=project,
        actor=by,
        project=project,
        details=dict(values),
    )
    return settings


# Storage of suggestions, computed by a model before annotators see the comparison.


@dataclass(frozen=True, kw_only=True, slots=True)
class SuggestionInput:
    """One suggestion of a model; which fields it has depends on its kind."""

    kind: SuggestionKind
    completion_id: int | None = None
    category_id: int | None = None
    start: int | None = None
    end: int | None = None
    quote: str = ""
    severity: int | None = None
    text: str = ""
    verdict: str = ""
    ranks: Mapping[int, int] = field(default_factory=dict)
    confidence: float | None = None
    original: Mapping[str, Any] | None = None
    """The suggestion before it was made wrong on purpose; None for one that stands as the model made it."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields as a planted suggestion keeps them under `original`."""
        values = {name: value for name, value in asdict(self).items() if name != "original"}
        return {**values, "ranks": {str(pk): rank for pk, rank in self.ranks.items()}}


def store_suggestions(
    *, comparison: Comparison, source: str, suggestions: Sequence[SuggestionInput]
) -> SuggestionSet:
    """Write the suggestions for a comparison, all or none. A second call returns what is stored already.

    Refuses a span that does not stand on its quote (`StaleAnswer`), a place outside its completion, a
    category or completion that the comparison does not have, and a text that cannot be stored.
    """
    checked = [
        _checked(suggestion, number, comparison) for number, suggestion in enumerate(suggestions, start=1)
    ]
    with transaction.atomic():
        # The row decides between two workers: the later one writes nothing.
        stored, created = SuggestionSet.objects.get_or_create(
            comparison=comparison, defaults={"source": source}
        )
        if created:
            Suggestion.objects.bulk_create(_row(stored, suggestion) for suggestion in checked)
    return stored


def _row(stored: SuggestionSet, suggestion: SuggestionInput) -> Suggestion:
    return Suggestion(
        suggestion_set=stored,
        kind=suggestion.kind,
        completion_id=suggestion.completion_id,
        category_id=suggestion.category_id,
        start=suggestion.start,
        end=suggestion.end,
        quote=suggestion.quote,
        severity=suggestion.severity,
        text=suggestion.text,
        verdict=suggestion.verdict,
        ranks={str(pk): rank for pk, rank in suggestion.ranks.items()},
        confidence=suggestion.confidence,
        is_planted=suggestion.original is not None,
        original=dict(suggestion.original) if suggestion.original is not None else None,
    )


def _checked(suggestion: SuggestionInput, number: int, comparison: Comparison) -> SuggestionInput:
    completions = Completion.objects.filter(comparisons=comparison).in_bulk()
    check_text(suggestion.text, "text")
    if suggestion.kind == SuggestionKind.PREFERENCE:
        ranks = check_ranks(verdict=suggestion.verdict, ranks=suggestion.ranks, completion_ids=completions)
        return replace(suggestion, ranks=ranks)
    completion = completions.get(suggestion.completion_id or 0)
    if completion is None:
        raise InvalidAnswer(
            "unknown_response",
            _("Suggestion %(number)s refers to a response that is not in this comparison."),
            field="completion",
            number=number,
        )
    if suggestion.kind == SuggestionKind.SPAN:
        return _checked_span(suggestion, number, completion, comparison)
    if not suggestion.text.strip():
        raise InvalidAnswer(
            "suggestion_empty", _("Suggestion %(number)s has no text."), field="text", number=number
        )
    if suggestion.kind == SuggestionKind.MISSING:
        _category(suggestion, number, comparison, CategoryScope.MISSING)
    return suggestion


def _checked_span(
    suggestion: SuggestionInput, number: int, completion: Completion, comparison: Comparison
) -> SuggestionInput:
    category = _category(suggestion, number, comparison, CategoryScope.SPAN)
    steps = category.severity_steps
    # An accepted span needs a severity where its category asks for one: the middle step where none is known.
    severity = suggestion.severity or ((steps + 1) // 2 if steps else None)
    if suggestion.start is None or suggestion.end is None:
        raise InvalidAnswer(
            "suggestion_without_place", _("Suggestion %(number)s has no place."), field="start", number=number
        )
    span = SpanPart(
        completion=str(completion.pk),
        category=category.key,
        start=suggestion.start,
        end=suggestion.end,
        quote=suggestion.quote,
        text_hash=completion.text_hash,
        severity=severity,
    )
    check_span(span, number, {str(completion.pk): completion}, {category.key: category}, severity_asked=False)
    return replace(suggestion, severity=severity)


def _category(
    suggestion: SuggestionInput, number: int, comparison: Comparison, scope: CategoryScope
) -> Category:
    categories = configuration_of(comparison.project).categories
    category = next(
        (row for row in categories if row.pk == suggestion.category_id and row.scope == scope), None
    )
    if category is None:
        raise InvalidAnswer(
            "unknown_category",
            _("Suggestion %(number)s has a category that this project does not have."),
            field="category",
            number=number,
        )
    return category


# Accepted suggestions as parts of an answer. Nothing here writes.

SUGGESTED_STRENGTH = 2
"""Strength of an accepted preference where the annotator chose none."""


def contains(answer: JudgmentRecord, suggestion: Suggestion) -> bool:
    """Return True where an answer says what a suggestion says."""
    kind = suggestion.kind
    if kind == SuggestionKind.SPAN:
        completion, category = _named(suggestion)
        there = {
            span.category
            for span in answer.spans
            if (span.completion, span.start, span.end) == (completion, suggestion.start, suggestion.end)
        }
        # Where its category was divided since, a sub-category says the same and more.
        return category in there or bool(
            there and suggestion.category and suggestion.category.parts.filter(key__in=there).exists()
        )
    if kind == SuggestionKind.MISSING:
        return any(
            (missing.completion, missing.category, missing.text.strip())
            == (*_named(suggestion), suggestion.text.strip())
            for missing in answer.missing
        )
    if kind == SuggestionKind.CRITIQUE:
        return any(
            critique.completion == _named(suggestion)[0] and suggestion.text.strip() in critique.text
            for critique in answer.critiques
        )
    return answer.verdict == suggestion.verdict and (
        answer.verdict != Verdict.RANKED or dense_ranks(answer.ranks) == suggestion.ranks
    )


def with_accepted(
    answer: JudgmentRecord, accepted: Iterable[Suggestion], *, asks_strength: bool
) -> JudgmentRecord:
    """Return the answer with every accepted suggestion that it does not contain yet."""
    for suggestion in accepted:
        if not contains(answer, suggestion):
            answer = _with(answer, suggestion, asks_strength)
    return answer


def ranks_of(suggestion: Suggestion) -> dict[int, int]:
    """Completion id → rank of a suggested preference."""
    return {int(pk): rank for pk, rank in suggestion.ranks.items()}


def _named(suggestion: Suggestion) -> tuple[str, str]:
    """Return the completion and the category of a suggestion, as a record names them."""
    return str(suggestion.completion_id), suggestion.category.key if suggestion.category else ""


def _with(answer: JudgmentRecord, suggestion: Suggestion, asks_strength: bool) -> JudgmentRecord:
    if suggestion.kind == SuggestionKind.PREFERENCE:
        size = suggestion.suggestion_set.comparison.size
        is_won_pair = suggestion.verdict == Verdict.RANKED and size == 2
        strength = SUGGESTED_STRENGTH if is_won_pair and asks_strength else None
        return replace(
            answer,
            verdict=suggestion.verdict,
            ranks=dict(suggestion.ranks),
            strength=strength,
        )
    completion = suggestion.completion
    if completion is None:
        return answer
    name, category = _named(suggestion)
    if suggestion.kind == SuggestionKind.CRITIQUE:
        before = [critique for critique in answer.critiques if critique.completion == name]
        text = "\n\n".join([*(critique.text for critique in before), suggestion.text])
        others = [critique for critique in answer.critiques if critique.completion != name]
        return replace(answer, critiques=(*others, CritiquePart(completion=name, text=text)))
    if suggestion.kind == SuggestionKind.MISSING:
        missing = MissingPart(completion=name, category=category, text=suggestion.text)
        return replace(answer, missing=(*answer.missing, missing))
    span = SpanPart(
        completion=name,
        category=category,
        start=suggestion.start or 0,
        end=suggestion.end or 0,
        quote=suggestion.quote,
        text_hash=completion.text_hash,
        severity=suggestion.severity,
    )
    return replace(answer, spans=(*answer.spans, span))


# The final pass over a comparison: suggestions in sight, each accepted, changed or rejected.


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
        twin = Judgment.everything.filter(idempotency_key=idempotency_key).first()
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
