"""Tables of a project's data, and bulk actions on what is chosen in them."""

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from annotation.choices import Role
from annotation.errors import Refusal
from annotation.exchange.file_exports import MOST_COMPARISONS
from annotation.models import Project
from annotation.selectors.tables import TABLES, View
from annotation.services import bulk
from annotation.services.bulk.effect import MOST_ROWS
from annotation.views.access import Request, project_page

_ADDRESSES = {name: f"data-{name}" for name in TABLES}


ACTIONS: dict[str, Callable[..., bulk.Effect]] = {
    "comparisons.requeue": bulk.requeue,
    "comparisons.overlap": bulk.raise_overlap,
    "comparisons.priority": bulk.set_priority,
    "comparisons.close": bulk.close,
    "comparisons.review": bulk.send_to_review,
    "comparisons.release": bulk.release,
    "comparisons.quarantine": bulk.quarantine,
    "comparisons.reserve": bulk.reserve,
    "prompts.tag": bulk.add_tag,
    "prompts.untag": bulk.remove_tag,
}


@require_safe
@never_cache
@project_page(role=Role.MANAGER)
def table(request: Request, project: Project, table: str) -> HttpResponse:
    """Show a table of the project's data. For managers."""
    view = View(TABLES[table], project, request.GET)
    context = {"project": project, "view": view, "address": reverse(_ADDRESSES[table], args=[project.slug])}
    template = "annotation/data/rows.html" if request.htmx else "annotation/data/table.html"
    return render(request, template, context)


@require_POST
@project_page(role=Role.MANAGER)
def act(request: Request, project: Project, table: str) -> HttpResponse:
    """Show the effect of a bulk action on the chosen rows, and carry it out once confirmed. For managers."""
    if table not in TABLES:
        raise Http404
    declared = next(
        (action for action in TABLES[table].actions if action.name == request.POST.get("action")), None
    )
    query = request.POST.get("query", "")[:2000]
    address = reverse(_ADDRESSES[table], args=[project.slug]) + (f"?{query}" if query else "")
    if declared is None:
        messages.error(request, _("Choose an action."))
        return redirect(address)
    chosen = _chosen(request, View(TABLES[table], project, QueryDict(query)))
    if declared.name == "export":
        return _to_export(request, project, chosen, address)
    value = request.POST.get(f"value-{declared.name}") or request.POST.get("value", "")
    arguments: dict[str, Any] = {"project": project, "actor": request.user, "chosen": chosen}
    if declared.value:
        arguments["value"] = value
    confirmed = request.POST.get("confirmed") == "yes"
    try:
        if not chosen:
            raise Refusal("no_row_selected", _("No row is selected. Select rows first."))
        effect = ACTIONS[f"{table}.{declared.name}"](**arguments, dry_run=not confirmed)
    except Refusal as refusal:
        messages.error(request, str(refusal))
        return redirect(address)
    if confirmed:
        done = ngettext("%(number)s row changed.", "%(number)s rows changed.", effect.changed)
        messages.success(request, done % {"number": effect.changed})
        return redirect(address)
    context = {
        "project": project,
        "table": TABLES[table],
        "action": declared,
        "value": value,
        "effect": effect,
        "chosen": ",".join(map(str, chosen)),
        "query": query,
        "address": address,
    }
    return render(request, "annotation/data/effect.html", context)


def _to_export(request: Request, project: Project, chosen: list[int], address: str) -> HttpResponse:
    """Open the export with the chosen comparisons as a filter."""
    if not 0 < len(chosen) <= MOST_COMPARISONS:
        messages.error(
            request,
            _("Select 1 to %(most)s comparisons to export; for more, use the filters of the export.")
            % {"most": MOST_COMPARISONS},
        )
        return redirect(address)
    named = ",".join(map(str, chosen))
    return redirect(f"{reverse('export-choose', args=[project.slug])}?comparisons={named}")


def _chosen(request: Request, view: View) -> list[int]:
    """Return the selected rows, or all that match; one more than may be changed is enough to refuse them."""
    if request.POST.get("matching") == "1":
        return list(view.matching.order_by("pk").values_list("pk", flat=True)[: MOST_ROWS + 1])
    values = ",".join(request.POST.getlist("chosen")).split(",")
    chosen = [value for value in values if value.isdecimal() and len(value) < 19]
    return list(dict.fromkeys(map(int, chosen[: MOST_ROWS + 1])))
