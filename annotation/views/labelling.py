"""The labelling screen: get the next comparison, submit, skip, renew, open the last one again."""

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe
from django_htmx.http import replace_url, retarget

from annotation import selectors
from annotation.choices import AssignmentState, Purpose, Role
from annotation.errors import AnsweredElsewhere, LeaseLost, Refusal
from annotation.forms import Entered, FlagForm, JudgmentForm, SkipForm
from annotation.known_answers import Feedback, feedback_for
from annotation.models import Assignment, Comparison, Guideline, Project
from annotation.rendering import render_markdown
from annotation.services.assignments import assign_next, renew_lease, skip_assignment
from annotation.services.doubts import Doubt, doubts_of
from annotation.services.flags import flag_item
from annotation.services.judgments import submit_judgment
from annotation.services.labelling import submit_and_get_next
from annotation.standing import why_nothing
from annotation.views.access import Request, own_assignment, project_page
from annotation.views.screen import Screen, draft_of
from annotation.views.show import show


@require_safe
@project_page(role=Role.ANNOTATOR)
def label(request: Request, project: Project) -> HttpResponse:
    """The next comparison, or what is to be waited for. For annotators."""
    assignment = assign_next(project=project, annotator=request.user)
    feedback = _feedback_after(request, project)
    if assignment is None:
        return _nothing_to_label(request, project, feedback)
    return _show_empty(request, project, assignment, feedback)


@require_POST
@project_page(role=Role.ANNOTATOR)
def submit(request: Request, project: Project, pk: int) -> HttpResponse:
    """Store the judgment and go on to the next comparison. For the annotator who has it."""
    assignment = own_assignment(request, project, pk)
    entered = Entered.from_post(request.POST, assignment)
    form = JudgmentForm(entered, request.POST, assignment=assignment)
    guideline = _guideline_on_screen(request, project)
    doubts = _not_asked_yet(form, assignment)
    if form.is_valid() and not doubts:
        say = submit_judgment if _goes_on_by_itself(request) else submit_and_get_next
        try:
            given = say(
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
            upcoming = given if isinstance(given, Assignment) else None
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
    """Give a comparison back for good, with a reason. For the annotator who has it."""
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
    # The screen stays as it is, with all that was entered; only the small form is replaced.
    return retarget(render(request, "annotation/skip.html", context, status=422), "#skip-form")


@require_POST
@project_page(role=Role.ANNOTATOR)
def flag(request: Request, project: Project, pk: int) -> HttpResponse:
    """Report a comparison to reviewers; it stays in hand. For the annotator who has it."""
    assignment = own_assignment(request, project, pk)
    form = FlagForm(request.POST)
    flagged = None
    if form.is_valid():
        try:
            flagged = flag_item(assignment=assignment, annotator=request.user, **form.cleaned_data)
        except Refusal as refusal:
            form.add_error(None, refusal.message)
    context = {"project": project, "assignment": assignment, "flag_form": form, "flagged": flagged}
    # The screen stays as it is, with all that was entered; only the small form is replaced.
    template = "annotation/flag.html" if request.htmx else "annotation/flag_page.html"
    return render(request, template, context, status=200 if flagged else 422)


@require_POST
@project_page(role=Role.ANNOTATOR)
def renew(request: Request, project: Project, pk: int) -> HttpResponse:
    """Say that one is still at work on it. For the annotator who has it."""
    try:
        renew_lease(assignment=own_assignment(request, project, pk), annotator=request.user)
    except LeaseLost as refusal:
        return HttpResponse(refusal.message, status=409, content_type="text/plain; charset=utf-8")
    return HttpResponse(status=204)


@require_safe
@project_page(role=Role.ANNOTATOR)
def revise(request: Request, project: Project, pk: int) -> HttpResponse:
    """Open what one submitted, to change it: the old judgment stays, superseded. For who submitted it."""
    assignment = own_assignment(request, project, pk)
    judgment = selectors.current_judgment(assignment)
    if assignment.state != AssignmentState.SUBMITTED or judgment is None:
        return redirect("label", project.slug)
    draft = draft_of(assignment)
    entered = Entered.from_draft(draft) if draft else Entered.from_judgment(judgment)
    screen = Screen(project=project, assignment=assignment, annotator=request.user, entered=entered)
    return show(request, screen)


def _not_asked_yet(form: JudgmentForm, assignment: Assignment) -> tuple[Doubt, ...]:
    """What the answer makes one doubt, unless all of it was asked before."""
    if not form.is_valid():
        return ()
    doubts = doubts_of(form.answer, assignment)
    asked = form.entered.confirmed.split()
    return () if all(doubt.key in asked for doubt in doubts) else doubts


def _goes_on_by_itself(request: Request) -> bool:
    """Whether the answer to this submit carries no comparison: the page has it, or is led to it."""
    return not request.htmx or bool(request.headers.get("X-Next-In-Hand"))


def _submitted(
    request: Request, project: Project, assignment: Assignment, upcoming: Assignment | None
) -> HttpResponse:
    """What follows a submit: the next comparison, and what there is to say of a gold item."""
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
    """The next comparison in the same answer; without htmx by a redirect."""
    address = reverse("label", args=[project.slug])
    if not request.htmx:
        return redirect(f"{address}?after={after.pk}" if after and feedback else address)
    assignment = upcoming or assign_next(project=project, annotator=request.user)
    if assignment is None:
        return replace_url(_nothing_to_label(request, project, feedback), address)
    return replace_url(_show_empty(request, project, assignment, feedback, after=after), address)


def _feedback_after(request: Request, project: Project) -> Feedback | None:
    """What there is to say of the item that was submitted before, on the page to which its submit led."""
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
    """The judgment that the page began with: 0 for none, None when the page does not say."""
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
        "feedback": feedback,
        "explanation": render_markdown(feedback.explanation) if feedback else "",
    }
    template = "annotation/waiting.html" if request.htmx else "annotation/waiting_page.html"
    response = render(request, template, context)
    response["Cache-Control"] = "no-store"
    return response
