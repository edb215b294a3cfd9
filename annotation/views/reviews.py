"""Reviews on the labelling screen, blind until the decision: no names of annotators or models."""

from dataclasses import dataclass, replace

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from annotation.choices import Role
from annotation.errors import NotAllowed, Refusal
from annotation.forms.judgment import Entered, JudgmentForm
from annotation.models import Project, Review
from annotation.selectors import access
from annotation.selectors.reviews import (
    ReviewPage,
    decided_reviews_of,
    open_reviews_for,
    page_of_review,
    returned_reviews_for,
    shared_record,
)
from annotation.services.reviews import (
    AlreadyDecided,
    decide_review,
    may_review,
    object_to_return,
    return_annotation,
    undo_decision,
)
from annotation.views.access import Request, own_assignment, project_page
from annotation.views.labelling.places import LabellingPlace
from annotation.views.labelling.screen import Screen

_LISTED = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedReturn:
    """A return that was refused: of which vote, its text, and why."""

    vote: str
    comment: str
    message: str


@require_safe
@never_cache
@project_page(role=Role.REVIEWER)
def reviews(request: Request, project: Project) -> HttpResponse:
    """List the reviews that the user may decide, the returned and the decided ones. For reviewers."""
    waiting = open_reviews_for(project, request.user)
    context = {
        "project": project,
        "waiting": waiting.select_related("comparison__prompt").prefetch_related("returns")[:_LISTED],
        "waiting_count": waiting.count(),
        "returned": returned_reviews_for(project, request.user).select_related("comparison__prompt")[
            :_LISTED
        ],
        "decided": decided_reviews_of(project).select_related("comparison__prompt", "reviewer")[:_LISTED],
    }
    return render(request, "annotation/reviews/queue.html", context)


@require_safe
@never_cache
@project_page(role=Role.REVIEWER)
def review(request: Request, project: Project, pk: int) -> HttpResponse:
    """Show the labelling screen with the votes, or the decision. For reviewers who did not vote."""
    return _show(request, project, _review(request, project, pk))


@require_POST
@project_page(role=Role.REVIEWER)
def decide(request: Request, project: Project, pk: int) -> HttpResponse:
    """Decide a review, once. For reviewers who did not vote."""
    review = _review(request, project, pk)
    assignment = page_of_review(review, request.user)
    entered = Entered.from_post(request.POST, assignment)
    form = JudgmentForm(entered, request.POST, assignment=assignment)
    if not form.is_valid():
        return _show(request, project, review, entered=entered, form=form, status=422)
    try:
        decide_review(
            review=review,
            reviewer=request.user,
            answer=form.answer,
            comment=form.answer.comment,
        )
    except AlreadyDecided as refusal:
        messages.warning(request, refusal.message)
        return _show(request, project, refusal.review, status=409)
    except NotAllowed as refusal:
        raise PermissionDenied(refusal.message) from refusal
    except Refusal as refusal:
        form.add_refusal(refusal)
        return _show(request, project, review, entered=entered, form=form, status=422)
    messages.success(request, _("Decided. The votes stay as they were."))
    return redirect("review", project.slug, pk)


@require_POST
@project_page(role=Role.REVIEWER)
def take_part(request: Request, project: Project, pk: int) -> HttpResponse:
    """Add a part of a vote to the form of an open review; write nothing. For reviewers."""
    review = _review(request, project, pk)
    assignment = page_of_review(review, request.user)
    entered = Entered.from_post(request.POST, assignment)
    part = ReviewPage(review).part_of(request.POST.get("take", ""))
    if review.decided_at is not None:
        return _show(request, project, review, status=409)
    if part is None:
        messages.warning(request, _("This part is no longer there: the vote was corrected. Take it again."))
        return _show(request, project, review, entered=entered, status=422)
    return _show(request, project, review, entered=entered.with_part(part, assignment))


@require_POST
@project_page(role=Role.REVIEWER)
def return_vote(request: Request, project: Project, pk: int) -> HttpResponse:
    """Return an annotation to its annotator with a comment. For reviewers who did not vote."""
    review = _review(request, project, pk)
    vote, comment = request.POST.get("vote", ""), request.POST.get("comment", "")
    try:
        return_annotation(review=review, vote=vote, reviewer=request.user, comment=comment)
    except AlreadyDecided as refusal:
        messages.warning(request, refusal.message)
        return _show(request, project, refusal.review, status=409)
    except NotAllowed as refusal:
        raise PermissionDenied(refusal.message) from refusal
    except Refusal as refusal:
        refused = RefusedReturn(vote=vote, comment=comment, message=refusal.message)
        return _show(request, project, review, refused=refused, status=422)
    messages.success(request, _("Returned. The answer arrives here and in your inbox."))
    return redirect("review", project.slug, pk)


@require_POST
@project_page(role=Role.REVIEWER)
def undo(request: Request, project: Project, pk: int) -> HttpResponse:
    """Undo a decision: the comparison waits for reviewers again. For who decided it, and for managers."""
    review = _review(request, project, pk)
    try:
        undo_decision(review=review, user=request.user, reason=request.POST.get("comment", ""))
    except NotAllowed as refusal:
        raise PermissionDenied(refusal.message) from refusal
    except Refusal as refusal:
        messages.warning(request, refusal.message)
        review.refresh_from_db()
        return _show(request, project, review, status=409)
    messages.success(request, _("Undone. The comparison waits for a decision again."))
    return redirect("review", project.slug, pk)


@require_POST
@project_page(role=Role.ANNOTATOR)
def object_to(request: Request, project: Project, pk: int) -> HttpResponse:
    """Object to the return of one's own annotation, which stays as it is. For the annotator who has it."""
    assignment = own_assignment(request, project, pk)
    text = request.POST.get("objection", "")
    try:
        object_to_return(assignment=assignment, annotator=request.user, text=text)
    except Refusal as refusal:
        context = {
            "project": project,
            "assignment": assignment,
            "message": refusal.message,
            "objection": text,
            "is_open": refusal.code != "nothing_returned",
        }
        return render(request, "annotation/reviews/objection_page.html", context, status=422)
    messages.success(request, _("Sent. The reviewer sees your objection."))
    return redirect("label", project.slug)


def _review(request: Request, project: Project, pk: int) -> Review:
    """Return the review in the address; while it is open, only to a reviewer who may decide it."""
    rows = Review.objects.select_related("comparison__prompt", "comparison__project", "reviewer")
    review = get_object_or_404(rows, pk=pk, comparison__project=project)
    review.comparison.project = project
    if review.decided_at is None and not may_review(review, request.user):
        raise PermissionDenied
    return review


def _show(
    request: Request,
    project: Project,
    review: Review,
    *,
    entered: Entered | None = None,
    form: JudgmentForm | None = None,
    refused: RefusedReturn | None = None,
    status: int = 200,
) -> HttpResponse:
    page = ReviewPage(review)
    is_manager = access.may(request.user, project, Role.MANAGER)
    context = {
        "project": project,
        "page": page,
        "refused": refused,
        "next": open_reviews_for(project, request.user).exclude(pk=review.pk).first(),
        "may_undo": review.decided_at is not None
        and (is_manager or review.reviewer_id == request.user.pk)
        and may_review(review, request.user),
    }
    if review.decided_at is not None:
        return render(request, "annotation/reviews/review.html", context, status=status)
    assignment = page_of_review(review, request.user)
    address = reverse("review", args=[project.slug, review.pk])
    screen = Screen(
        project=project,
        assignment=assignment,
        annotator=request.user,
        entered=entered or _filled(request, page),
        form=form,
        place=LabellingPlace(
            review=page,
            address=address,
            submit=reverse("review-decide", args=[project.slug, review.pk]),
            kept=False,
        ),
    )
    context |= {"screen": screen, "filled_from": request.GET.get("vote", "")}
    context["screen_markup"] = render_to_string("annotation/screen.html", context, request)
    return render(request, "annotation/reviews/screen_page.html", context, status=status)


def _filled(request: Request, page: ReviewPage) -> Entered:
    """Return the fields filled from the vote in `?vote=`, else with what all votes say alike."""
    record = page.record_of(request.GET.get("vote", "")) or shared_record(page.records)
    if record is None:
        return Entered()
    assignment = page_of_review(page.review, request.user)
    return Entered.from_record(replace(record, comment=""), assignment)
