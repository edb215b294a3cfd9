"""Pages of AI annotators: judges, suggestions, rubric drafts."""

from django.contrib import messages
from django.db.models import BigIntegerField
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from annotation.choices import JobState, Role
from annotation.errors import Refusal
from annotation.forms.rubrics import RubricForm, criterion_forms
from annotation.models import Project
from annotation.views.access import Request, project_page
from training.forms.judges import JudgeForm, RubricDraftForm, ServedModelForm
from training.forms.suggestions import SuggestionsForm
from training.models import Judge, RubricDraft, SuggestionSource
from training.services.checkpoints import register_served_model
from training.services.judges import create_judge, set_judge
from training.services.rubric_drafts import request_draft, save_draft
from training.services.suggestions import set_suggestions

# ── Judges ──


_RELATED = ("checkpoint", "project", "user", "rubric__rubric__project")


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def judges(request: Request, project: Project) -> HttpResponse:
    """The judges of a project, and a form for another. For managers."""
    form = JudgeForm(request.POST or None, project=project)
    if request.method == "POST" and form.is_valid():
        try:
            judge = create_judge(project=project, created_by=request.user, **form.cleaned_data)
        except Refusal as error:
            form.add_error(error.field if error.field in form.fields else None, error.message)
        else:
            messages.success(request, _("%(name)s judges as soon as a worker finds it.") % {"name": judge})
            return redirect(judge)
    context = {
        "project": project,
        "judges": project.judges.select_related("checkpoint"),
        "form": form,
    }
    return render(request, "training/judges.html", context, status=422 if form.errors else 200)


@require_safe
@project_page(role=Role.MANAGER)
def judge(request: Request, project: Project, pk: int) -> HttpResponse:
    """A judge: its agreement with people, its leaning, its cost, what it said last. For managers."""
    # NumPy is loaded when somebody opens this page, not with the web server.
    from training.selectors.judges import report_of

    judge = _judge(project, pk)
    verdicts = judge.verdicts.select_related("judgment__comparison__prompt").prefetch_related(
        "judgment__rubric_scores__criterion"
    )[:10]
    context = {"project": project, "judge": judge, "report": report_of(judge), "verdicts": verdicts}
    return render(request, "training/judge.html", context)


@require_POST
@project_page(role=Role.MANAGER)
def judge_set(request: Request, project: Project, pk: int) -> HttpResponse:
    """Pause a judge, or let it go on. For managers."""
    judge = _judge(project, pk)
    try:
        set_judge(judge=judge, active="resume" in request.POST, by=request.user)
    except Refusal as error:
        messages.error(request, error.message)
    return redirect(judge)


@require_http_methods(["GET", "HEAD", "POST"])
def served_model(request: Request) -> HttpResponse:
    """A form to write down a model of another server. For who is a superuser."""
    if not request.user.is_superuser:
        raise Http404
    form = ServedModelForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            checkpoint = register_served_model(by=request.user, **form.cleaned_data)
        except Refusal as error:
            form.add_error(error.field if error.field in form.fields else None, error.message)
        else:
            messages.success(request, _("%(name)s can be asked now.") % {"name": checkpoint})
            return redirect(checkpoint)
    return render(request, "training/served_model.html", {"form": form}, status=422 if form.errors else 200)


def _judge(project: Project, pk: int) -> Judge:
    judge = (
        project.judges.select_related(*_RELATED).filter(pk=pk).first()
        if pk <= BigIntegerField.MAX_BIGINT
        else None
    )
    if judge is None:
        raise Http404
    return judge


# ── Suggestions ──


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def suggestions(request: Request, project: Project) -> HttpResponse:
    """Settings of suggestions, their progress, and the effect of help with intervals. For managers."""
    # NumPy is loaded when somebody opens this page, not with the web server.
    from annotation.statistics.help import HelpPage, help_report

    form = SuggestionsForm(request.POST or None, project=project)
    if request.method == "POST" and form.is_valid():
        try:
            set_suggestions(project=project, by=request.user, **form.cleaned_data)
        except Refusal as error:
            form.add_error(error.field if error.field in form.fields else None, error.message)
        else:
            messages.success(request, _("The settings of the suggestions are stored."))
            return redirect("suggestions", project.slug)
    source = SuggestionSource.objects.filter(project=project).select_related("checkpoint").first()
    context = {
        "project": project,
        "form": form,
        "source": source,
        "page": HelpPage(help_report(project)),
    }
    return render(request, "training/suggestions.html", context, status=422 if form.errors else 200)


# ── Rubric drafts ──


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def drafts(request: Request, project: Project) -> HttpResponse:
    """The drafts of a project's rubrics, and a form for another. For managers."""
    form = RubricDraftForm(request.POST or None, project=project)
    if request.method == "POST" and form.is_valid():
        try:
            draft = request_draft(project=project, requested_by=request.user, **form.cleaned_data)
        except Refusal as error:
            form.add_error(error.field if error.field in form.fields else None, error.message)
        else:
            return redirect(draft)
    rows = project.rubric_drafts.select_related("project", "checkpoint", "version__rubric__project")
    context = {"project": project, "drafts": rows, "form": form}
    return render(request, "training/rubrics/drafts.html", context, status=422 if form.errors else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def draft(request: Request, project: Project, pk: int) -> HttpResponse:
    """A draft: its progress, the check of each criterion, and the form that saves it. For managers."""
    draft = _draft(project, pk)
    if request.htmx:
        answer = render(request, "training/rubrics/progress.html", {"project": project, "draft": draft})
        if not draft.goes_on:
            answer["HX-Refresh"] = "true"
        return answer
    return _edited(request, draft)


def _edited(request: Request, draft: RubricDraft) -> HttpResponse:
    # NumPy is loaded when somebody opens this page, not with the web server.
    from training.selectors.rubrics import checked_criteria

    is_done = draft.state == JobState.FINISHED and draft.version_id is None
    checked = checked_criteria(draft)
    form = RubricForm(request.POST or None)
    criteria = criterion_forms(
        request.POST or None,
        [
            {name: criterion.values[name] for name in ("name", "text", "scale", "weight")}
            for criterion in checked
        ],
    )
    if request.method == "POST" and is_done and form.is_valid() and criteria.is_valid():
        try:
            version = save_draft(
                draft=draft,
                name=form.cleaned_data["name"],
                criteria=criteria.criteria,
                saved_by=request.user,
            )
        except Refusal as refusal:
            form.add_error("name" if refusal.field == "name" else None, refusal.message)
        else:
            messages.success(request, _("Saved as version %(number)s.") % {"number": version.number})
            return redirect(version.rubric)
    context = {
        "project": draft.project,
        "draft": draft,
        "checked": checked,
        "is_done": is_done,
        "form": form,
        "criteria": criteria,
    }
    return render(request, "training/rubrics/draft.html", context, status=422 if form.is_bound else 200)


def _draft(project: Project, pk: int) -> RubricDraft:
    rows = project.rubric_drafts.select_related("project", "checkpoint", "version__rubric__project")
    draft = rows.filter(pk=pk).first() if pk <= BigIntegerField.MAX_BIGINT else None
    if draft is None:
        raise Http404
    return draft
