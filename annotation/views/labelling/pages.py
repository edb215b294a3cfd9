"""The labelling screen: open, submit, skip, report, renew and revise a comparison."""

import json
import uuid
from typing import Any

from django.http import HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from django_htmx.http import retarget

from annotation.choices import AssignmentState, Role
from annotation.errors import AnsweredElsewhere, InvalidAnswer, LeaseLost, Refusal
from annotation.forms.judgment import Entered, FlagForm, JudgmentForm, SkipForm, decisions_in
from annotation.models import Assignment, Continuation, Draft, HelpReveal, Project
from annotation.selectors import access as selectors
from annotation.selectors.suggestions import oldest_open_reveal, open_reveal_of
from annotation.services.assignments.display_order import tokens_of
from annotation.services.assignments.leases import renew_lease, skip_assignment
from annotation.services.assignments.next import assign_ahead, assign_next
from annotation.services.judgments.drafts import DraftConflict, continue_response, is_offered, save_draft
from annotation.services.judgments.submission import flag_item, submit_and_get_next, submit_judgment
from annotation.services.projects.project_questions import repeated_keys
from annotation.services.suggestions import finish_help
from annotation.views.access import Request, own_assignment, project_page
from annotation.views.labelling.flow import (
    assignment_to_change,
    doubts_left,
    guideline_on_screen,
    nothing_to_label,
    notice_after,
    notice_of,
    rubric_on_screen,
    show,
    show_again,
    show_empty,
    show_final_pass,
    show_next,
)
from annotation.views.labelling.places import LabellingPlace, place_in
from annotation.views.labelling.screen import Screen, draft_of


@require_safe
@project_page(role=Role.ANNOTATOR)
def label(request: Request, project: Project) -> HttpResponse:
    """Show the final pass that waits, the next comparison, or why there is none. For annotators."""
    notice = notice_after(request, project)
    reveal = oldest_open_reveal(project, request.user)
    if reveal is not None:
        return show_final_pass(request, project, reveal, notice)
    again = assignment_to_change(project, request.user)
    if again is not None:
        return show_again(request, project, again, notice)
    assignment = assign_next(project=project, annotator=request.user)
    if assignment is None:
        return nothing_to_label(request, project, notice)
    return show_empty(request, project, assignment, notice)


@require_safe
@project_page(role=Role.ANNOTATOR)
def label_ahead(request: Request, project: Project) -> HttpResponse:
    """Prefetch the screen that follows the assignment in `?after=`; 204 without one. For annotators."""
    if project.has_help or assignment_to_change(project, request.user) is not None:
        # A final pass may come first, which hangs on what is submitted, or what is to be changed.
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
        repeated=repeated_keys(assignment) if assignment.state == AssignmentState.SUBMITTED else (),
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


def _back(request: Request, place: LabellingPlace) -> HttpResponse:
    """Return the way back to the conversation: the script asks for it by itself."""
    return HttpResponse() if request.htmx else redirect(place.address)


def _goes_on_by_itself(request: Request, project: Project) -> bool:
    """Return True if the page has the next comparison already, is redirected to it, or a final pass or an
    annotation that is to be changed may come before it."""
    if not request.htmx or project.has_help or request.headers.get("X-Next-In-Hand"):
        return True
    return assignment_to_change(project, request.user) is not None


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


# Continuations of rewritten responses on the labelling screen.


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.ANNOTATOR)
def continuation(request: Request, project: Project, pk: int) -> HttpResponse:
    """Tell whether a model can continue, or have it continue a response. For the annotator who has it.

    JSON. GET: `offered`, and a `message` where it is not. POST with `candidate` and `prefix`: the
    continuation's `id` and `text`; 422 with a `message`. Neither names the model or its settings.
    """
    assignment = own_assignment(request, project, pk)
    if request.method != "POST":
        offered = is_offered(assignment)
        message = "" if offered else _("No model is served that could continue. Write the rest yourself.")
        return JsonResponse({"offered": offered, "message": message})
    completion = tokens_of(assignment).get(request.POST.get("candidate", ""))
    if completion is None:
        return JsonResponse({"message": _("There is no such response here. Reload the page.")}, status=422)
    try:
        written = continue_response(
            assignment=assignment,
            annotator=request.user,
            completion_id=completion,
            prefix=request.POST.get("prefix", ""),
        )
    except Refusal as refusal:
        return JsonResponse({"message": refusal.message}, status=422)
    return JsonResponse(shown(written))


def shown(written: Continuation) -> dict[str, object]:
    """Return what an annotator sees of a continuation."""
    return {"id": written.pk, "text": written.text}


# Drafts of the labelling screen.


@require_POST
@project_page(role=Role.ANNOTATOR)
def draft(request: Request, project: Project, pk: int) -> HttpResponse:
    """Save the state of the form. For the annotator who has it.

    Takes JSON: fields (name → list of values), base_version, saved_from, is_revision. Answers 200 with the
    new version; 409 with the stored draft when it is newer; 410 when the assignment is closed; 400 when the
    JSON is invalid.
    """
    assignment = own_assignment(request, project, pk)
    try:
        saved = save_draft(assignment=assignment, annotator=request.user, **_read(request))
    except DraftConflict as conflict:
        stored = _shown(conflict.stored) if conflict.stored else None
        return JsonResponse({"message": conflict.message, "stored": stored}, status=409)
    except LeaseLost as refusal:
        return JsonResponse({"message": refusal.message}, status=410)
    except InvalidAnswer as refusal:
        return JsonResponse({"message": refusal.message}, status=400)
    return JsonResponse(_shown(saved))


def _read(request: Request) -> dict[str, Any]:
    try:
        sent = json.loads(request.body)
        return {
            "fields": dict(sent["fields"]),
            "base_version": int(sent["base_version"]),
            "saved_from": uuid.UUID(sent["saved_from"]),
            "is_revision": sent.get("is_revision") is True,
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidAnswer(
            "invalid_draft", _("This is no draft of a labelling page. Reload the page.")
        ) from error


def _shown(row: Draft) -> dict[str, Any]:
    return {
        "version": row.version,
        "fields": row.fields,
        "saved_from": str(row.saved_from),
        "saved_at": row.saved_at.isoformat(),
    }


# The final pass: a submitted comparison again, with the suggestions of a model to decide on.


@require_safe
@project_page(role=Role.ANNOTATOR)
def final_pass(request: Request, project: Project, pk: int) -> HttpResponse:
    """Show the suggestions for a submitted comparison. For the annotator who submitted it."""
    assignment = own_assignment(request, project, pk)
    reveal = open_reveal_of(assignment) if project.has_help else None
    if reveal is None:
        return redirect("label", project.slug)
    return show_final_pass(request, project, reveal)


@require_POST
@project_page(role=Role.ANNOTATOR)
def final_pass_submit(request: Request, project: Project, pk: int) -> HttpResponse:
    """Store the final pass with its decisions and go on. For the annotator who submitted the first."""
    assignment = own_assignment(request, project, pk)
    reveal = HelpReveal.objects.select_related("first_judgment").filter(assignment=assignment).first()
    if reveal is None:
        return redirect("label", project.slug)
    reveal.assignment = assignment
    entered = Entered.from_post(request.POST, assignment)
    form = JudgmentForm(entered, request.POST, assignment=assignment)
    doubts = doubts_left(form, assignment)
    guideline = guideline_on_screen(request, project)
    if form.is_valid() and not doubts:
        try:
            finish_help(
                reveal=reveal,
                annotator=request.user,
                answer=form.answer,
                decisions=decisions_in(request.POST),
                idempotency_key=form.cleaned_data["idempotency_key"],
                guideline=guideline,
                rubric=rubric_on_screen(request, project),
                is_applied=request.POST.get("suggestions_applied") == "1",
            )
        except AnsweredElsewhere as refusal:
            if request.htmx:
                return HttpResponse(refusal.message, status=409, content_type="text/plain; charset=utf-8")
            return redirect("label", project.slug)
        except Refusal as refusal:
            form.add_refusal(refusal)
        else:
            return show_next(request, project, after=assignment, notice=notice_of(assignment))
    screen = Screen(
        project=project,
        assignment=assignment,
        annotator=request.user,
        entered=entered,
        form=form,
        guideline=guideline,
        doubts=doubts,
        reveal=reveal,
        sent=request.POST,
    )
    return show(request, screen, status=422)
