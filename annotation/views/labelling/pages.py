"""The labelling screen: open, submit, skip, report, renew and revise a comparison."""

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe
from django_htmx.http import retarget

from annotation.choices import AssignmentState, Role
from annotation.errors import AnsweredElsewhere, LeaseLost, Refusal
from annotation.forms import Entered, FlagForm, JudgmentForm, SkipForm
from annotation.models import Assignment, Project
from annotation.selectors import access as selectors
from annotation.selectors.suggestions import oldest_open_reveal, open_reveal_of
from annotation.services.assignments.leases import renew_lease, skip_assignment
from annotation.services.assignments.next import assign_ahead, assign_next
from annotation.services.judgments.submission import flag_item, submit_and_get_next, submit_judgment
from annotation.views.access import Request, own_assignment, project_page
from annotation.views.labelling.flow import (
    doubts_left,
    guideline_on_screen,
    nothing_to_label,
    notice_after,
    notice_of,
    rubric_on_screen,
    show,
    show_empty,
    show_final_pass,
    show_next,
)
from annotation.views.labelling.places import Place, place_in
from annotation.views.labelling.screen import Screen, draft_of


@require_safe
@project_page(role=Role.ANNOTATOR)
def label(request: Request, project: Project) -> HttpResponse:
    """Show the final pass that waits, the next comparison, or why there is none. For annotators."""
    notice = notice_after(request, project)
    reveal = oldest_open_reveal(project, request.user)
    if reveal is not None:
        return show_final_pass(request, project, reveal, notice)
    assignment = assign_next(project=project, annotator=request.user)
    if assignment is None:
        return nothing_to_label(request, project, notice)
    return show_empty(request, project, assignment, notice)


@require_safe
@project_page(role=Role.ANNOTATOR)
def label_ahead(request: Request, project: Project) -> HttpResponse:
    """Prefetch the screen that follows the assignment in `?after=`; 204 without one. For annotators."""
    if project.has_help:
        # A final pass may come first, which hangs on what is submitted.
        return HttpResponse(status=204)
    pk = request.GET.get("after", "")
    after = own_assignment(request, project, int(pk)) if pk.isdecimal() else None
    assignment = after and assign_ahead(project=project, annotator=request.user, after=after)
    if assignment is None:
        return HttpResponse(status=204)
    return show_empty(request, project, assignment, after=after)


@require_POST
@project_page(role=Role.ANNOTATOR)
def submit(request: Request, project: Project, pk: int) -> HttpResponse:
    """Submit a judgment and go on to the next comparison. For the annotator who has it."""
    assignment = own_assignment(request, project, pk)
    entered = Entered.from_post(request.POST, assignment)
    form = JudgmentForm(entered, request.POST, assignment=assignment)
    guideline = guideline_on_screen(request, project)
    doubts = doubts_left(form, assignment)
    place = place_in(request, assignment)
    if form.is_valid() and not doubts:
        goes_on = bool(place) or _goes_on_by_itself(request, project)
        service = submit_judgment if goes_on else submit_and_get_next
        try:
            result = service(
                assignment=assignment,
                annotator=request.user,
                answer=form.answer,
                idempotency_key=form.cleaned_data["idempotency_key"],
                guideline=guideline,
                rubric=rubric_on_screen(request, project),
                stands_on=_judgment_begun_with(request),
            )
        except AnsweredElsewhere as refusal:
            if request.htmx:
                return HttpResponse(refusal.message, status=409, content_type="text/plain; charset=utf-8")
            form.add_refusal(refusal)
        except Refusal as refusal:
            form.add_refusal(refusal)
        else:
            if place is not None:
                return _back(request, place)
            upcoming = result if isinstance(result, Assignment) else None
            return _submitted(request, project, assignment, upcoming)
    screen = Screen(
        project=project,
        assignment=assignment,
        annotator=request.user,
        entered=entered,
        form=form,
        guideline=guideline,
        doubts=doubts,
        place=place,
    )
    return show(request, screen, status=422)


@require_POST
@project_page(role=Role.ANNOTATOR)
def skip(request: Request, project: Project, pk: int) -> HttpResponse:
    """Return a comparison permanently, with a reason. For the annotator who has it."""
    assignment = own_assignment(request, project, pk)
    form = SkipForm(request.POST)
    if form.is_valid():
        try:
            skip_assignment(assignment=assignment, annotator=request.user, reason=form.text)
        except Refusal as refusal:
            form.add_error(None, refusal.message)
        else:
            place = place_in(request, assignment)
            return _back(request, place) if place else show_next(request, project)
    context = {"project": project, "assignment": assignment, "skip_form": form}
    if not request.htmx:
        return render(request, "annotation/skip_page.html", context, status=422)
    # Replace only the small form, so that everything entered stays.
    return retarget(render(request, "annotation/skip.html", context, status=422), "#skip-form")


@require_POST
@project_page(role=Role.ANNOTATOR)
def flag(request: Request, project: Project, pk: int) -> HttpResponse:
    """Report a comparison to reviewers and keep it. For the annotator who has it."""
    assignment = own_assignment(request, project, pk)
    form = FlagForm(request.POST)
    flagged = None
    if form.is_valid():
        try:
            flagged = flag_item(assignment=assignment, annotator=request.user, **form.cleaned_data)
        except Refusal as refusal:
            form.add_error(None, refusal.message)
    context = {"project": project, "assignment": assignment, "flag_form": form, "flagged": flagged}
    # Replace only the small form, so that everything entered stays.
    template = "annotation/flag.html" if request.htmx else "annotation/flag_page.html"
    return render(request, template, context, status=200 if flagged else 422)


@require_POST
@project_page(role=Role.ANNOTATOR)
def renew(request: Request, project: Project, pk: int) -> HttpResponse:
    """Renew the lease of an assignment. For the annotator who has it."""
    try:
        renew_lease(assignment=own_assignment(request, project, pk), annotator=request.user)
    except LeaseLost as refusal:
        return HttpResponse(refusal.message, status=409, content_type="text/plain; charset=utf-8")
    return HttpResponse(status=204)


@require_safe
@project_page(role=Role.ANNOTATOR)
def revise(request: Request, project: Project, pk: int) -> HttpResponse:
    """Open a submitted judgment to change it; a new one supersedes it. For the annotator who submitted it."""
    assignment = own_assignment(request, project, pk)
    judgment = selectors.current_judgment(assignment)
    if assignment.state != AssignmentState.SUBMITTED or judgment is None:
        return redirect("label", project.slug)
    if project.has_help and open_reveal_of(assignment) is not None:
        return redirect("final-pass", project.slug, pk)
    draft = draft_of(assignment)
    entered = Entered.from_draft(draft) if draft else Entered.from_judgment(judgment)
    screen = Screen(
        project=project,
        assignment=assignment,
        annotator=request.user,
        entered=entered,
        place=place_in(request, assignment),
    )
    return show(request, screen)


def _back(request: Request, place: Place) -> HttpResponse:
    """Return the way back to the conversation: the script asks for it by itself."""
    return HttpResponse() if request.htmx else redirect(place.address)


def _goes_on_by_itself(request: Request, project: Project) -> bool:
    """Return True if the page has the next comparison already, is redirected to it, or a final pass may come
    before it."""
    return not request.htmx or project.has_help or bool(request.headers.get("X-Next-In-Hand"))


def _submitted(
    request: Request, project: Project, assignment: Assignment, upcoming: Assignment | None
) -> HttpResponse:
    """Return the response to a submission: what comes next, and feedback on a gold item."""
    notice = notice_of(assignment)
    if not request.headers.get("X-Next-In-Hand"):
        return show_next(request, project, after=assignment, notice=notice, upcoming=upcoming)
    if not notice:
        return HttpResponse(status=204)
    return render(request, "annotation/feedback.html", notice.context())


def _judgment_begun_with(request: Request) -> int | None:
    """Return the judgment that the page started from: 0 for none, None if the page does not say."""
    judgment = request.POST.get("stands_on", "")
    return int(judgment) if judgment.isdecimal() else None
