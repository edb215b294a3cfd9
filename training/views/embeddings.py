"""Pages of search by meaning: more like this prompt, near-duplicates, and the job that embeds."""

from django import forms
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from annotation.choices import Role
from annotation.forms import offer
from annotation.models import Project
from annotation.views.access import Request, project_page, refusals_shown
from training.models import Checkpoint
from training.selectors.embeddings import (
    LEAST_LIKENESS,
    LIKENESS,
    embedding_state,
    most_like,
    near_duplicate_groups,
    newest_job,
    with_prompts,
)
from training.services.embeddings import cancel_embeddings, embedding_models, request_embeddings

_SHOWN = 30
_GROUPS_ON_A_PAGE = 20
_THRESHOLDS = (LEAST_LIKENESS, LIKENESS, 0.95, 0.98, 1.0)


class EmbedForm(forms.Form):
    """The model that reads a project's prompts."""

    checkpoint = forms.ModelChoiceField(
        Checkpoint.objects.none(),
        label=gettext_lazy("Model"),
        empty_label=None,
        help_text=gettext_lazy(
            "A small base model is enough. Another model than before embeds all prompts anew."
        ),
    )

    def __init__(self, *args: object, project: Project) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        # Base models first, then the newest checkpoint.
        offer(self, "checkpoint", embedding_models(project).order_by("-kind", "-pk"))
        newest = newest_job(project)
        self.initial["checkpoint"] = newest.checkpoint_id if newest else None


@require_safe
@never_cache
@project_page(role=Role.MANAGER)
def similar(request: Request, project: Project, pk: int) -> HttpResponse:
    """Show the prompts that are most like one. For managers."""
    prompt = get_object_or_404(project.prompts.select_related("project"), pk=pk)
    state = embedding_state(project)
    context = {
        "project": project,
        "prompt": prompt,
        "state": state,
        "similar": most_like(prompt, model=state.model, most=_SHOWN) if state.embedded else None,
        "form": EmbedForm(project=project),
    }
    return render(request, "training/embeddings/similar.html", context)


@require_safe
@never_cache
@project_page(role=Role.MANAGER)
def near_duplicates(request: Request, project: Project) -> HttpResponse:
    """Show groups of near-duplicates above a threshold, the most alike first. For managers."""
    try:
        likeness = min(1.0, max(LEAST_LIKENESS, float(request.GET.get("likeness", LIKENESS))))
    except ValueError:
        likeness = LIKENESS
    state = embedding_state(project)
    groups = near_duplicate_groups(project, model=state.model, likeness=likeness) if state.embedded else []
    page = Paginator(groups, _GROUPS_ON_A_PAGE).get_page(request.GET.get("page"))
    context = {
        "project": project,
        "state": state,
        "likeness": likeness,
        "thresholds": [(f"{value:g}", f"{value:.0%}", value == likeness) for value in _THRESHOLDS],
        "page": page,
        "groups": with_prompts(project, list(page)),
        "surplus": sum(len(keys) - 1 for _cosine, keys in groups),
        "form": EmbedForm(project=project),
    }
    return render(request, "training/embeddings/near_duplicates.html", context)


@require_POST
@project_page(role=Role.MANAGER)
def embed(request: Request, project: Project) -> HttpResponse:
    """Have a model read the prompts that it has not read. For managers."""
    form = EmbedForm(request.POST, project=project)
    if not form.is_valid():
        messages.error(request, _("Choose a model."))
        return redirect("near-duplicates", project.slug)
    with refusals_shown(request):
        request_embeddings(
            project=project, checkpoint=form.cleaned_data["checkpoint"], requested_by=request.user
        )
    return redirect("near-duplicates", project.slug)


@require_POST
@project_page(role=Role.MANAGER)
def cancel(request: Request, project: Project) -> HttpResponse:
    """End the job that goes on; what is embedded stays. For managers."""
    job = newest_job(project)
    if job is not None:
        with refusals_shown(request):
            cancel_embeddings(job=job, cancelled_by=request.user)
    return redirect("near-duplicates", project.slug)


@require_safe
@project_page(role=Role.MANAGER)
def progress(request: Request, project: Project) -> HttpResponse:
    """Show the progress of the newest job: a fragment that reloads itself until it ends. For managers."""
    state = embedding_state(project)
    answer = render(request, "training/embeddings/state.html", {"project": project, "state": state})
    if request.htmx and (state.job is None or not state.job.goes_on):
        answer["HX-Refresh"] = "true"
    return answer
