"""The page of one comparison."""

from dataclasses import dataclass

from django.core.exceptions import PermissionDenied
from django.db.models import BigIntegerField
from django.http import Http404, HttpResponse, JsonResponse, QueryDict
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
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
    step_token,
)
from annotation.selectors.tables.data import COMPARISONS
from annotation.selectors.tables.table import View
from annotation.selectors.traces import part_of_step, title_of
from annotation.services.assignments.display_order import tokens_of
from annotation.services.reviews import may_review
from annotation.services.saved_views import LONGEST_QUERY
from annotation.statistics.cached import is_large, items_are_cached, items_of
from annotation.views.access import Request, own_assignment, project_page

PANEL = "comparison-panel"
"""The element beside the table of comparisons that htmx fills with one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """The way to the comparisons before and after one, and back to the list that holds them."""

    neighbours: Neighbours
    back: str
    """The address of the list."""
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
    # What one may do in this project is known already.
    comparison.project = project
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
    is_panel = request.htmx.target == PANEL
    if request.htmx and not is_panel:
        return render(request, "annotation/comparison/responses.html", context)
    context["way"] = _way(request, project, comparison) if is_manager else None
    if is_panel:
        return render(request, "annotation/comparison/panel.html", context | {"is_panel": True})
    return render(request, "annotation/comparison/page.html", context)


def require_open_to_reviewer(request: Request, review: Review | None) -> None:
    """Refuse a reviewer who may not open the comparison's review: what it shows is on this page, too."""
    if review is None or (review.decided_at is None and not may_review(review, request.user)):
        raise PermissionDenied


def _way(request: Request, project: Project, comparison: Comparison) -> Way:
    query = request.GET.copy()
    view = query.pop("view", [""])[-1]
    neighbours = None
    back = reverse("statistics-items", args=[project.slug])
    if table := query.get("table", "")[:LONGEST_QUERY]:
        rows = View(COMPARISONS, project, QueryDict(table))
        previous, following = rows.neighbours(comparison.pk)
        neighbours = Neighbours(previous=previous, next=following)
        back = f"{reverse('data-comparisons', args=[project.slug])}?{rows.address_query}"
    elif "show" in query:
        form = ItemsForm(query, project=project)
        # In a large project the list takes long: its place is known while the list is fresh.
        arguments = (project, form.selection, form.shown)
        if items_are_cached(*arguments) or not is_large(project):
            neighbours = neighbours_in(items_of(*arguments), comparison)
    list_query = query.urlencode() if neighbours else ""
    # What one annotator saw is looked at in one comparison; side by side, and everybody, in many.
    view_query = f"view={SIDE_BY_SIDE}" if view == SIDE_BY_SIDE else ""
    if list_query and not table:
        back += f"?{list_query}"
    return Way(
        neighbours=neighbours or neighbours_by_age(comparison),
        back=back,
        list_query=list_query,
        query="&".join(part for part in (list_query, view_query) if part),
    )


# Parts of the steps of a trace, which are too long to stand in its page.


@require_safe
@project_page(role=Role.ANNOTATOR)
def label_step(request: Request, project: Project, pk: int, token: str, index: int) -> HttpResponse:
    """Show a part of a step of a trace on the labelling screen. For the annotator who has it."""
    tokens = tokens_of(own_assignment(request, project, pk))
    if token not in tokens:
        raise Http404
    return _part(request, project, tokens[token], index)


@require_safe
@never_cache
@project_page(role=Role.REVIEWER)
def comparison_step(request: Request, project: Project, pk: int, token: str, index: int) -> HttpResponse:
    """Show a part of a step of a trace. For managers; for reviewers who may open the comparison's review."""
    comparison = get_object_or_404(Comparison, pk=pk, project=project)
    if not access.may(request.user, project, Role.MANAGER):
        review = Review.objects.filter(comparison=comparison).select_related("comparison__project").first()
        require_open_to_reviewer(request, review)
    ids = comparison.candidates.values_list("completion_id", flat=True)
    completion = next(
        (completion_id for completion_id in ids if step_token(comparison.pk, completion_id) == token), None
    )
    if completion is None:
        raise Http404
    return _part(request, project, completion, index)


def _part(request: Request, project: Project, completion: int, index: int) -> HttpResponse:
    """Return the part that begins at `?from=`: as JSON for the page of its trace, else as a page."""
    start = request.GET.get("from", "0")
    if not (start.isascii() and start.isdigit() and len(start) < 10) or index > 10**9:
        raise Http404
    part = part_of_step(completion, index, int(start))
    if part is None:
        raise Http404
    following = "" if part.following is None else f"{request.path}?from={part.following}"
    if "application/json" in request.headers.get("Accept", ""):
        # A text, no markup: whatever a tool wrote stays a text in the page.
        return JsonResponse({"text": part.text, "next": following, "left": part.left})
    context = {"project": project, "part": part, "title": title_of(part.step), "following": following}
    return render(request, "annotation/traces/part.html", context)
