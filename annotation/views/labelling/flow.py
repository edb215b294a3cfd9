"""From one comparison to the next: what is shown, and the labelling screen as HTML."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django_htmx.http import replace_url

from annotation.choices import Purpose
from annotation.forms.judgment import Entered, JudgmentForm
from annotation.models import (
    Assignment,
    Comparison,
    Guideline,
    HelpReveal,
    Project,
    RubricVersion,
    Suggestion,
    User,
)
from annotation.selectors import access as selectors
from annotation.selectors.annotator_work import announced_guideline
from annotation.selectors.configuration import configuration_of
from annotation.selectors.eligibility import daily_limit_of, why_nothing
from annotation.selectors.known_answers import GoldFeedback, feedback_for
from annotation.selectors.reviews import oldest_return
from annotation.selectors.rubrics import published_version
from annotation.selectors.suggestions import oldest_open_reveal, planted_suggestions
from annotation.services.assignments.next import assign_next
from annotation.services.judgments.submission import Doubt, doubts_of
from annotation.services.projects.project_questions import (
    oldest_repeated,
    repeated_categories,
    repeated_keys,
)
from annotation.text.rendering import render_markdown
from annotation.views.access import Request, own_assignment
from annotation.views.labelling.screen import Screen, draft_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Notice about the comparison before; false where there is nothing to show."""

    feedback: GoldFeedback | None = None
    planted: Sequence[tuple[Suggestion, str]] = ()
    """Suggestions that were wrong on purpose, with the annotator's decisions."""

    def __bool__(self) -> bool:
        return self.feedback is not None or bool(self.planted)

    def context(self) -> dict[str, Any]:
        """Return what feedback.html and planted.html take."""
        explanation = render_markdown(self.feedback.explanation) if self.feedback else ""
        return {"feedback": self.feedback, "explanation": explanation, "planted": self.planted}


NOTHING = Notice()


def show(request: Request, screen: Screen, *, status: int = 200, notice: Notice = NOTHING) -> HttpResponse:
    """Render the labelling screen: the fragment for htmx, else the whole page."""
    announced = announced_guideline(screen.project, request.membership)
    context = {"project": screen.project, "screen": screen, "announced": announced, **notice.context()}
    markup = render_to_string("annotation/screen.html", context, request)
    if request.htmx:
        response = HttpResponse(markup, status=status)
    else:
        context = {"project": screen.project, "screen_markup": markup}
        response = render(request, "annotation/label.html", context, status=status)
    # A cached page would show a comparison that may be gone.
    response["Cache-Control"] = "no-store"
    return response


def show_next(
    request: Request,
    project: Project,
    *,
    after: Assignment | None = None,
    notice: Notice = NOTHING,
    upcoming: Assignment | None = None,
) -> HttpResponse:
    """Return the final pass that waits or the next comparison, by a redirect without htmx."""
    address = reverse("label", args=[project.slug])
    if not request.htmx:
        return redirect(f"{address}?after={after.pk}" if after and notice else address)
    reveal = oldest_open_reveal(project, request.user)
    if reveal is not None:
        return show_final_pass(request, project, reveal, notice)
    again = assignment_to_change(project, request.user)
    if again is not None:
        return show_again(request, project, again, notice)
    assignment = upcoming or assign_next(project=project, annotator=request.user)
    if assignment is None:
        return replace_url(nothing_to_label(request, project, notice), address)
    return replace_url(show_empty(request, project, assignment, notice, after=after), address)


def show_empty(
    request: Request,
    project: Project,
    assignment: Assignment,
    notice: Notice = NOTHING,
    *,
    after: Assignment | None = None,
) -> HttpResponse:
    """Return the screen of a comparison that is not judged yet, with its draft."""
    draft = draft_of(assignment)
    entered = Entered.from_draft(draft) if draft else Entered()
    screen = Screen(
        project=project, assignment=assignment, annotator=request.user, entered=entered, after=after
    )
    return show(request, screen, notice=notice)


def show_final_pass(
    request: Request, project: Project, reveal: HelpReveal, notice: Notice = NOTHING
) -> HttpResponse:
    """Return the screen of a final pass: the first pass or its draft, with the suggestions."""
    assignment = reveal.assignment
    assignment.comparison.project = project
    draft = draft_of(assignment)
    entered = Entered.from_draft(draft) if draft else Entered.from_judgment(reveal.first_judgment)
    screen = Screen(
        project=project, assignment=assignment, annotator=request.user, entered=entered, reveal=reveal
    )
    return show(request, screen, notice=notice)


def assignment_to_change(project: Project, annotator: User) -> Assignment | None:
    """Return the annotation that its annotator has to look at again before anything else; None for none.

    The oldest that a reviewer returned, else the oldest to which a question or a split category is put again.
    No query where nothing waits in the project.
    """
    returned = oldest_return(project, annotator)
    if returned is not None:
        return returned
    return oldest_repeated(project, annotator) if configuration_of(project).has_repeated else None


def show_again(
    request: Request, project: Project, assignment: Assignment, notice: Notice = NOTHING
) -> HttpResponse:
    """Return the screen of an annotation that has to be looked at again, filled with what was answered."""
    judgment = selectors.current_judgment(assignment)
    draft = draft_of(assignment)
    if draft is not None:
        entered = Entered.from_draft(draft)
    else:
        entered = Entered.from_judgment(judgment) if judgment else Entered()
    screen = Screen(
        project=project,
        assignment=assignment,
        annotator=request.user,
        entered=entered,
        repeated=repeated_keys(assignment),
        repeated_categories=repeated_categories(assignment)
        if configuration_of(project).split_categories
        else (),
    )
    return show(request, screen, notice=notice)


def nothing_to_label(request: Request, project: Project, notice: Notice = NOTHING) -> HttpResponse:
    """Return the page that says why there is nothing to label, and looks again by itself."""
    round_number = selectors.round_of_work(project, request.user)
    prompt_count = project.prompts.count()
    offered = Comparison.objects.filter(project=project, round_number=round_number, purpose=Purpose.WORK)
    answered = offered.values("prompt").distinct().count()
    context = {
        "project": project,
        "round_number": round_number,
        "progress": selectors.progress_of(project, request.user, round_number),
        "asked": prompt_count,
        "answered": answered,
        "last": selectors.last_submitted(request.user, project),
        "looked_at": timezone.localtime(),
        "why": why_nothing(project, request.user),
        "daily_limit": daily_limit_of(project, request.membership),
        "total_limit": request.membership.total_limit if request.membership else None,
        **notice.context(),
    }
    template = "annotation/waiting.html" if request.htmx else "annotation/waiting_page.html"
    response = render(request, template, context)
    response["Cache-Control"] = "no-store"
    return response


def notice_of(assignment: Assignment) -> Notice:
    """Return the messages after a submission: feedback on gold, and what was planted."""
    project = assignment.comparison.project
    reveal = (
        HelpReveal.objects.filter(assignment=assignment).select_related("assignment__comparison").first()
        if project.has_help
        else None
    )
    if reveal is not None:
        reveal.assignment.comparison.project = project
    return Notice(
        feedback=feedback_for(assignment), planted=planted_suggestions(reveal) if reveal is not None else ()
    )


def notice_after(request: Request, project: Project) -> Notice:
    """Return the notice of the assignment in `?after=`, for pages without htmx."""
    after = request.GET.get("after", "")
    return notice_of(own_assignment(request, project, int(after))) if after.isdecimal() else NOTHING


def doubts_left(form: JudgmentForm, assignment: Assignment) -> tuple[Doubt, ...]:
    """Return the doubts about a judgment, unless the page has shown all of them."""
    if not form.is_valid():
        return ()
    doubts = doubts_of(form.answer, assignment)
    confirmed = form.entered.confirmed.split()
    return () if all(doubt.key in confirmed for doubt in doubts) else doubts


def guideline_on_screen(request: Request, project: Project) -> Guideline | None:
    """Return the version of the rules that the page shows."""
    version = request.POST.get("guideline", "")
    newest = selectors.current_guideline(project)
    if newest is not None and version == str(newest.version):
        return newest
    return project.guidelines.filter(version=int(version)).first() if version.isdecimal() else None


def rubric_on_screen(request: Request, project: Project) -> RubricVersion | None:
    """Return the version of the rubric that the page shows; None where it shows none."""
    version = request.POST.get("rubric", "")
    return published_version(project, int(version)) if version.isdecimal() else None
