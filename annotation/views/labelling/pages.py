"""The labelling screen: open, submit, skip, report, renew and revise a comparison."""

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe
from django_htmx.http import replace_url, retarget

from annotation.choices import AssignmentState, Purpose, Role
from annotation.errors import AnsweredElsewhere, LeaseLost, Refusal
from annotation.forms import Entered, FlagForm, JudgmentForm, SkipForm
from annotation.models import Assignment, Comparison, Guideline, Project
from annotation.selectors import access as selectors
from annotation.selectors.eligibility import daily_limit_of, why_nothing
from annotation.selectors.known_answers import Feedback, feedback_for
from annotation.services.assignments import assign_ahead, assign_next, renew_lease, skip_assignment
from annotation.services.judgments.confirmations import Doubt, doubts_of
from annotation.services.judgments.flags import flag_item
from annotation.services.judgments.labelling import submit_and_get_next
from annotation.services.judgments.submission import submit_judgment
from annotation.text.rendering import render_markdown
from annotation.views.access import Request, own_assignment, project_page
from annotation.views.labelling.response import show
from annotation.views.labelling.screen import Screen, draft_of


@require_safe
@project_page(role=Role.ANNOTATOR)
def label(request: Request, project: Project) -> HttpResponse:
    """Show the next comparison, or why there is none. For annotators."""
    assignment = assign_next(project=project, annotator=request.user)
    feedback = _feedback_after(request, project)
    if assignment is None:
        return _nothing_to_label(request, project, feedback)
    return _show_empty(request, project, assignment, feedback)


@require_safe
@project_page(role=Role.ANNOTATOR)
def label_ahead(request: Request, project: Project) -> HttpResponse:
    """Prefetch the screen that follows the assignment in `?after=`; 204 without one. For annotators."""
    pk = request.GET.get("after", "")
    after = own_assignment(request, project, int(pk)) if pk.isdecimal() else None
    assignment = after and assign_ahead(project=project, annotator=request.user, after=after)
    if assignment is None:
        return HttpResponse(status=204)
    return _show_empty(request, project, assignment, None, after=after)


@require_POST
@project_page(role=Role.ANNOTATOR)
def submit(request: Request, project: Project, pk: int) -> HttpResponse:
    """Submit a judgment and go on to the next comparison. For the annotator who has it."""
    assignment = own_assignment(request, project, pk)
    entered = Entered.from_post(request.POST, assignment)
    form = JudgmentForm(entered, request.POST, assignment=assignment)
    guideline = _guideline_on_screen(request, project)
    doubts = _not_asked_yet(form, assignment)
    if form.is_valid() and not doubts:
        service = submit_judgment if _goes_on_by_itself(request) else submit_and_get_next
        try:
            result = service(
                assignment=assignment,
                annotator=request.user,
                answer=form.answer,
                idempotency_key=form.cleaned_data["idempotency_key"],
                guideline=guideline,
                stands_on=_judgment_begun_with(request),
            )
        except AnsweredElsewhere as refusal:
            if request.htmx:
                return HttpResponse(refusal.message, status=409, content_type="text/plain; charset=utf-8")
            form.add_refusal(refusal)
        except Refusal as refusal:
            form.add_refusal(refusal)
        else:
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
            return _next(request, project)
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
    draft = draft_of(assignment)
    entered = Entered.from_draft(draft) if draft else Entered.from_judgment(judgment)
    screen = Screen(project=project, assignment=assignment, annotator=request.user, entered=entered)
    return show(request, screen)


def _not_asked_yet(form: JudgmentForm, assignment: Assignment) -> tuple[Doubt, ...]:
    """Return the doubts about a judgment, unless the page has shown all of them."""
    if not form.is_valid():
        return ()
    doubts = doubts_of(form.answer, assignment)
    confirmed = form.entered.confirmed.split()
    return () if all(doubt.key in confirmed for doubt in doubts) else doubts


def _goes_on_by_itself(request: Request) -> bool:
    """Return True if the page has the next comparison already, or is redirected to it."""
    return not request.htmx or bool(request.headers.get("X-Next-In-Hand"))


def _submitted(
    request: Request, project: Project, assignment: Assignment, upcoming: Assignment | None
) -> HttpResponse:
    """Return the response to a submission: the next comparison and feedback on a gold item."""
    feedback = feedback_for(assignment)
    if not request.headers.get("X-Next-In-Hand"):
        return _next(request, project, after=assignment, feedback=feedback, upcoming=upcoming)
    if feedback is None:
        return HttpResponse(status=204)
    context = {"feedback": feedback, "explanation": render_markdown(feedback.explanation)}
    return render(request, "annotation/feedback.html", context)


def _next(
    request: Request,
    project: Project,
    *,
    after: Assignment | None = None,
    feedback: Feedback | None = None,
    upcoming: Assignment | None = None,
) -> HttpResponse:
    """Return the next comparison, by a redirect without htmx."""
    address = reverse("label", args=[project.slug])
    if not request.htmx:
        return redirect(f"{address}?after={after.pk}" if after and feedback else address)
    assignment = upcoming or assign_next(project=project, annotator=request.user)
    if assignment is None:
        return replace_url(_nothing_to_label(request, project, feedback), address)
    return replace_url(_show_empty(request, project, assignment, feedback, after=after), address)


def _feedback_after(request: Request, project: Project) -> Feedback | None:
    """Return feedback on the gold item in `?after=`, for pages without htmx."""
    after = request.GET.get("after", "")
    return feedback_for(own_assignment(request, project, int(after))) if after.isdecimal() else None


def _show_empty(
    request: Request,
    project: Project,
    assignment: Assignment,
    feedback: Feedback | None,
    *,
    after: Assignment | None = None,
) -> HttpResponse:
    draft = draft_of(assignment)
    entered = Entered.from_draft(draft) if draft else Entered()
    screen = Screen(
        project=project, assignment=assignment, annotator=request.user, entered=entered, after=after
    )
    return show(request, screen, feedback=feedback)


def _judgment_begun_with(request: Request) -> int | None:
    """Return the judgment that the page started from: 0 for none, None if the page does not say."""
    judgment = request.POST.get("stands_on", "")
    return int(judgment) if judgment.isdecimal() else None


def _guideline_on_screen(request: Request, project: Project) -> Guideline | None:
    version = request.POST.get("guideline", "")
    newest = selectors.current_guideline(project)
    if newest is not None and version == str(newest.version):
        return newest
    return project.guidelines.filter(version=int(version)).first() if version.isdecimal() else None


def _nothing_to_label(request: Request, project: Project, feedback: Feedback | None) -> HttpResponse:
    round_number = selectors.round_of_work(project, request.user)
    asked = project.prompts.count()
    offered = Comparison.objects.filter(project=project, round_number=round_number, purpose=Purpose.WORK)
    answered = offered.values("prompt").distinct().count()
    context = {
        "project": project,
        "round_number": round_number,
        "progress": selectors.progress_of(project, request.user, round_number),
        "asked": asked,
        "answered": answered,
        "last": selectors.last_submitted(request.user, project),
        "looked_at": timezone.localtime(),
        "why": why_nothing(project, request.user),
        "daily_limit": daily_limit_of(project, request.membership),
        "total_limit": request.membership.total_limit if request.membership else None,
        "feedback": feedback,
        "explanation": render_markdown(feedback.explanation) if feedback else "",
    }
    template = "annotation/waiting.html" if request.htmx else "annotation/waiting_page.html"
    response = render(request, template, context)
    response["Cache-Control"] = "no-store"
    return response
