"""Suggestions that an annotator sees, and the reveals that wait for a final pass. Reads only."""

from django.db.models import QuerySet

from annotation.choices import CategoryScope, HelpArm, SuggestionKind
from annotation.models import Assignment, Comparison, HelpReveal, Project, Suggestion, User


def suggestions_for(comparison: Comparison) -> list[Suggestion]:
    """Return the suggestions that fit what the project asks now, in the order in which they were stored."""
    project = comparison.project
    kinds = {
        SuggestionKind.SPAN: project.ask_span_flags,
        SuggestionKind.CRITIQUE: project.ask_critique,
        SuggestionKind.MISSING: project.ask_missing_info,
        SuggestionKind.PREFERENCE: project.ask_verdict and comparison.size > 1,
    }
    rows = (
        Suggestion.objects.filter(
            suggestion_set__comparison=comparison,
            kind__in=[kind for kind, is_asked in kinds.items() if is_asked],
        )
        .select_related("category", "completion")
        .order_by("pk")
    )
    return [row for row in rows if _may_be_chosen(row)]


def open_reveal_of(assignment: Assignment) -> HelpReveal | None:
    """Return the reveal of an assignment whose final pass is not submitted yet."""
    reveal = _open_reveals().select_related("first_judgment").filter(assignment=assignment).first()
    if reveal is not None:
        reveal.assignment = assignment
    return reveal


def oldest_open_reveal(project: Project, annotator: User) -> HelpReveal | None:
    """Return the annotator's oldest reveal without a final pass. No query where the project has no help."""
    if not project.has_help:
        return None
    return (
        _open_reveals()
        .filter(assignment__annotator=annotator, assignment__comparison__project=project)
        .select_related("assignment__comparison__prompt", "first_judgment")
        .order_by("pk")
        .first()
    )


def planted_suggestions(reveal: HelpReveal) -> list[tuple[Suggestion, str]]:
    """Return the planted suggestions of a finished reveal with the annotator's decisions, if the project
    tells them."""
    project = reveal.assignment.comparison.project
    settings = getattr(project, "help_settings", None)
    if reveal.finished_at is None or settings is None or not settings.tells_planted:
        return []
    decided = reveal.decisions.filter(suggestion__is_planted=True).select_related(
        "suggestion__category", "suggestion__completion"
    )
    return [(row.suggestion, row.get_decision_display()) for row in decided]


def _open_reveals() -> QuerySet[HelpReveal]:
    return HelpReveal.objects.filter(arm=HelpArm.HELPED, finished_at__isnull=True)


def _may_be_chosen(suggestion: Suggestion) -> bool:
    if suggestion.kind not in (SuggestionKind.SPAN, SuggestionKind.MISSING):
        return True
    scope = CategoryScope.SPAN if suggestion.kind == SuggestionKind.SPAN else CategoryScope.MISSING
    category = suggestion.category
    return category is not None and category.scope == scope and not category.is_archived
