"""Parts of the steps of a trace, which are too long to stand in its page."""

from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from annotation.choices import Role
from annotation.models import Comparison, Project, Review
from annotation.selectors import access
from annotation.selectors.comparison import step_token
from annotation.selectors.traces import part_of_step, title_of
from annotation.services.assignments.display_order import tokens_of
from annotation.views.access import Request, own_assignment, project_page
from annotation.views.comparison import require_open_to_reviewer


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
