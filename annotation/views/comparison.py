"""The page of one comparison."""

from dataclasses import dataclass

from django.core.exceptions import PermissionDenied
from django.db.models import BigIntegerField
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from annotation.choices import Role
from annotation.forms.statistics import ItemsForm
from annotation.models import Comparison, Project, Review
from annotation.selectors import access
from annotation.selectors.comparison import (
    SIDE_BY_SIDE,
    ComparisonPage,
    Neighbours,
    neighbours_by_age,
    neighbours_in,
)
from annotation.services.quality.reviews import may_review
from annotation.statistics.cached import is_large, items_are_cached, items_of
from annotation.views.access import Request, project_page


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """The way to the comparisons before and after one, and back to the list that holds them."""

    neighbours: Neighbours
    list_query: str
    """The list that was chosen, as a query; empty for all comparisons by age."""
    query: str
    """The same with the way to look at the responses, for the neighbours' addresses."""


@require_safe
@never_cache
@project_page(role=Role.REVIEWER)
def comparison(request: Request, project: Project, pk: int) -> HttpResponse:
    """Show a comparison with all its judgments. For managers; for reviewers who may open its review."""
    if pk > BigIntegerField.MAX_BIGINT:
        raise Http404
    comparisons = Comparison.objects.select_related("prompt", "gold_answer", "project")
    comparison = get_object_or_404(comparisons, pk=pk, project=project)
    is_manager = access.may(request.user, project, Role.MANAGER)
    review = (
        Review.objects.filter(comparison=comparison).select_related("reviewer", "comparison__project").first()
    )
    if not is_manager:
        require_open_to_reviewer(request, review)
    page = ComparisonPage(
        comparison,
        view=request.GET.get("view", ""),
        review=review,
        is_blind=not is_manager and review is not None and review.decided_at is None,
    )
    context = {"project": project, "page": page, "is_manager": is_manager}
    if request.htmx:
        return render(request, "annotation/comparison/responses.html", context)
    context["way"] = _way(request, project, comparison) if is_manager else None
    return render(request, "annotation/comparison/page.html", context)


def require_open_to_reviewer(request: Request, review: Review | None) -> None:
    """Refuse a reviewer who may not open the comparison's review: what it shows is on this page, too."""
    if review is None or (review.decided_at is None and not may_review(review, request.user)):
        raise PermissionDenied


def _way(request: Request, project: Project, comparison: Comparison) -> Way:
    query = request.GET.copy()
    view = query.pop("view", [""])[-1]
    neighbours = None
    if "show" in query:
        form = ItemsForm(query, project=project)
        # In a large project the list takes long: its place is known while the list is fresh.
        arguments = (project, form.selection, form.shown)
        if items_are_cached(*arguments) or not is_large(project):
            neighbours = neighbours_in(items_of(*arguments), comparison)
    list_query = query.urlencode() if neighbours else ""
    # What one annotator saw is looked at in one comparison; side by side, and everybody, in many.
    view_query = f"view={SIDE_BY_SIDE}" if view == SIDE_BY_SIDE else ""
    return Way(
        neighbours=neighbours or neighbours_by_age(comparison),
        list_query=list_query,
        query="&".join(part for part in (list_query, view_query) if part),
    )
