"""Models that judge beside people, and models of other servers."""

from django.contrib import messages
from django.db.models import BigIntegerField
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from annotation.choices import Role
from annotation.errors import Refusal
from annotation.models import Project
from annotation.views.access import Request, project_page
from training.forms.judges import JudgeForm, ServedModelForm
from training.models import Judge
from training.services.checkpoints import register_served_model
from training.services.judges import create_judge, set_judge

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
