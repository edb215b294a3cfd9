"""One prompt with what belongs to it, and new prompts, written or copied from another."""

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from annotation.choices import Role
from annotation.exchange.formats.items import ImportedItem
from annotation.exchange.prompts import write_prompt
from annotation.forms.prompts import PromptForm
from annotation.models import Project
from annotation.selectors.near_duplicates import near_duplicates
from annotation.views.access import Request, project_page

_LISTED = 50


@require_safe
@never_cache
@project_page(role=Role.MANAGER)
def prompt(request: Request, project: Project, pk: int) -> HttpResponse:
    """Show a prompt, its comparisons and responses, and prompts that say almost the same. For managers."""
    shown = get_object_or_404(project.prompts, pk=pk)
    context = {
        "project": project,
        "prompt": shown,
        "comparisons": shown.comparisons.order_by("-pk")[:_LISTED],
        "completions": shown.completions.select_related("source").order_by("-pk")[:_LISTED],
        "similar": near_duplicates(project, shown.messages, besides=shown),
    }
    return render(request, "annotation/data/prompt.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@project_page(role=Role.MANAGER)
def prompt_new(request: Request, project: Project) -> HttpResponse:
    """Add a prompt, empty or copied by `?from=`; near-duplicates are shown first. For managers."""
    source = request.GET.get("from", "")
    is_key = source.isdecimal() and len(source) < 19
    copied = get_object_or_404(project.prompts, pk=source) if is_key else None
    form = PromptForm(request.POST or None, copied=copied)
    similar = []
    if request.method == "POST" and form.is_valid():
        similar = near_duplicates(project, form.messages, besides=copied)
        if not similar or request.POST.get("confirmed") == "yes":
            return _add(request, project, form)
    context = {"project": project, "form": form, "copied": copied, "similar": similar}
    return render(
        request, "annotation/data/prompt_new.html", context, status=422 if request.method == "POST" else 200
    )


def _add(request: Request, project: Project, form: PromptForm) -> HttpResponse:
    added, is_new = write_prompt(project=project, actor=request.user, parsed=ImportedItem(**form.parts))
    if is_new:
        messages.success(request, _("The prompt was added. The next round asks for responses to it."))
    else:
        messages.warning(request, _("The project has this prompt already."))
    return redirect("prompt", project.slug, added.pk)
