"""Managers' decisions about quarantined completions and gold items."""

from django import forms
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from annotation.choices import Purpose, Role
from annotation.errors import Refusal
from annotation.models import Comparison, Project, Withholding
from annotation.selectors.queues import decided_withholdings, gold_candidates, known_items, withheld_texts
from annotation.services.quality import mark_as_gold
from annotation.services.texts import decide_withholding
from annotation.views.access import Request, project_page

_LISTED = 100


class GoldForm(forms.Form):
    """A judged comparison to make a gold item of."""

    comparison = forms.IntegerField(
        error_messages={
            "required": gettext_lazy("Choose a comparison."),
            "invalid": gettext_lazy("Choose a comparison."),
        }
    )
    purpose = forms.ChoiceField(
        choices=[
            (Purpose.GOLD, gettext_lazy("gold: mixed in unseen")),
            (Purpose.QUALIFICATION, gettext_lazy("qualification: to be passed before real work")),
        ],
        initial=Purpose.GOLD,
        label=gettext_lazy("What for"),
    )
    explanation = forms.CharField(
        required=False,
        max_length=5000,
        label=gettext_lazy("Explanation of the known answer"),
        help_text=gettext_lazy("Shown to annotators after they submit, if the project gives feedback."),
        widget=forms.Textarea(attrs={"rows": 3}),
    )


@require_safe
@never_cache
@project_page(role=Role.MANAGER)
def withheld(request: Request, project: Project) -> HttpResponse:
    """List completions that seem to identify their model, to release or discard. For managers."""
    context = {
        "project": project,
        "waiting": withheld_texts(project),
        "decided": decided_withholdings(project)[:_LISTED],
    }
    return render(request, "annotation/queues/withheld.html", context)


@require_POST
@project_page(role=Role.MANAGER)
def decide_withheld(request: Request, project: Project, pk: int) -> HttpResponse:
    """Release a withheld comparison to annotators, or discard it. For managers."""
    withholding = get_object_or_404(Withholding, pk=pk, comparison__project=project)
    decision = request.POST.get("decision", "")
    if decision not in ("release", "discard"):
        messages.error(request, _("Choose whether to release or to discard the text."))
        return redirect("withheld", project.slug)
    try:
        decide_withholding(withholding=withholding, decided_by=request.user, release=decision == "release")
    except Refusal as refusal:
        messages.warning(request, refusal.message)
    else:
        done = _("Released: annotators may get it now.") if decision == "release" else _("Discarded.")
        messages.success(request, done)
    return redirect("withheld", project.slug)


@require_safe
@never_cache
@project_page(role=Role.MANAGER)
def gold(request: Request, project: Project) -> HttpResponse:
    """List gold and qualification items with annotators' results, and a form for a new one. For managers."""
    return _show_gold(request, project, GoldForm(initial={"comparison": request.GET.get("comparison", "")}))


@require_POST
@project_page(role=Role.MANAGER)
def make_gold(request: Request, project: Project) -> HttpResponse:
    """Make a gold item of a judged comparison. For managers."""
    form = GoldForm(request.POST)
    if not form.is_valid():
        return _show_gold(request, project, form, status=422)
    comparison = get_object_or_404(Comparison, pk=form.cleaned_data["comparison"], project=project)
    try:
        mark_as_gold(
            comparison=comparison,
            created_by=request.user,
            explanation=form.cleaned_data["explanation"],
            purpose=Purpose(form.cleaned_data["purpose"]),
        )
    except Refusal as refusal:
        form.add_error(None, refusal.message)
        return _show_gold(request, project, form, status=422)
    messages.success(request, _("The item is made. The comparison and its votes stay as they were."))
    return redirect("gold", project.slug)


def _show_gold(request: Request, project: Project, form: GoldForm, *, status: int = 200) -> HttpResponse:
    context = {
        "project": project,
        "items": known_items(project),
        "candidates": gold_candidates(project)[:_LISTED],
        "form": form,
        "chosen": str(form["comparison"].value() or ""),
    }
    return render(request, "annotation/queues/gold.html", context, status=status)
