"""Reviews, blind until the decision: no names of annotators or models."""

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from annotation.choices import Role
from annotation.errors import NotAllowed, Refusal
from annotation.forms.reviews import ReviewForm
from annotation.models import Project, Review
from annotation.selectors.reviews import ReviewPage, decided_reviews_of, open_reviews_for
from annotation.services.quality.reviews import AlreadyDecided, decide_review, may_review
from annotation.views.access import Request, project_page

_LISTED = 100


@require_safe
@never_cache
@project_page(role=Role.REVIEWER)
def reviews(request: Request, project: Project) -> HttpResponse:
    """List the reviews that the user may decide, and the decided ones. For reviewers."""
    waiting = open_reviews_for(project, request.user)
    context = {
        "project": project,
        "waiting": waiting.select_related("comparison__prompt")[:_LISTED],
        "waiting_count": waiting.count(),
        "decided": decided_reviews_of(project).select_related("comparison__prompt", "reviewer")[:_LISTED],
    }
    return render(request, "annotation/reviews/queue.html", context)


@require_safe
@never_cache
@project_page(role=Role.REVIEWER)
def review(request: Request, project: Project, pk: int) -> HttpResponse:
    """Show a comparison with its votes and, once decided, the decision. For reviewers who did not vote."""
    return _show(request, project, _review(request, project, pk))


@require_POST
@project_page(role=Role.REVIEWER)
def decide(request: Request, project: Project, pk: int) -> HttpResponse:
    """Decide a review, once. For reviewers who did not vote."""
    review = _review(request, project, pk)
    form = ReviewForm(request.POST, review=review)
    if not form.is_valid():
        return _show(request, project, review, form=form, status=422)
    try:
        decide_review(
            review=review,
            reviewer=request.user,
            verdict=form.verdict,
            ranks=form.ranks,
            comment=form.cleaned_data["comment"],
        )
    except AlreadyDecided as refusal:
        messages.warning(request, refusal.message)
        return _show(request, project, refusal.review, status=409)
    except NotAllowed as refusal:
        raise PermissionDenied(refusal.message) from refusal
    except Refusal as refusal:
        form.add_refusal(refusal)
        return _show(request, project, review, form=form, status=422)
    messages.success(request, _("Decided. The votes stay as they were."))
    return redirect("review", project.slug, pk)


def _review(request: Request, project: Project, pk: int) -> Review:
    """Return the review in the address; while it is open, only to a reviewer who may decide it."""
    rows = Review.objects.select_related("comparison__prompt", "comparison__project", "reviewer")
    review = get_object_or_404(rows, pk=pk, comparison__project=project)
    if review.decided_at is None and not may_review(review, request.user):
        raise PermissionDenied
    return review


def _show(
    request: Request, project: Project, review: Review, *, form: ReviewForm | None = None, status: int = 200
) -> HttpResponse:
    context = {
        "project": project,
        "page": ReviewPage(review),
        "form": form or ReviewForm(None, review=review),
        "next": open_reviews_for(project, request.user).exclude(pk=review.pk).first(),
    }
    return render(request, "annotation/reviews/review.html", context, status=status)
