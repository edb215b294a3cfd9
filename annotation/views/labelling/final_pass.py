"""The final pass: a submitted comparison again, with the suggestions of a model to decide on."""

from django.http import HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST, require_safe

from annotation.choices import Role
from annotation.errors import AnsweredElsewhere, Refusal
from annotation.forms import Entered, JudgmentForm
from annotation.forms.final_pass import decisions_in
from annotation.models import HelpReveal, Project
from annotation.selectors.suggestions import open_reveal_of
from annotation.services.suggestions.final_pass import finish_help
from annotation.views.access import Request, own_assignment, project_page
from annotation.views.labelling.flow import (
    doubts_left,
    guideline_on_screen,
    notice_of,
    rubric_on_screen,
    show,
    show_final_pass,
    show_next,
)
from annotation.views.labelling.screen import Screen


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
