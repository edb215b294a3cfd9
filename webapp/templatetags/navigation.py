"""Sidebar and tabs of the project that a page belongs to, available in every template."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django import template
from django.template import Context

from annotation.models import Comparison, Project
from annotation.statistics.home import HomeRow
from training.models import Round
from training.selectors.checkpoints import uses_of_comparison
from training.selectors.conversations import open_for_conversations
from training.selectors.dashboard import NextStep, dashboard_of, is_quick, next_step_of
from webapp.navigation.sections import FULL_WIDTH, Entry, entries

register = template.Library()

_NEXT_STEPS = 5


@register.inclusion_tag("training/dashboard/whole.html", takes_context=True)
def project_dashboard(context: Context, project: Project) -> dict[str, Any]:
    """Render the manager's part of a project's overview; of a large project it is computed afterwards."""
    request = context["request"]
    waits = "compute" not in request.GET and not is_quick(project)
    return {
        "request": request,
        "project": project,
        "dashboard": None if waits else dashboard_of(project),
    }


@register.inclusion_tag("training/comparison_uses.html")
def comparison_uses(comparison: Comparison) -> dict[str, Any]:
    """Render the provenance of a comparison's responses, and its use in training."""
    completions = comparison.candidates.order_by("index").values_list("completion_id", flat=True)
    return {"completions": completions, "uses": uses_of_comparison(comparison)}


@dataclass(frozen=True, slots=True)
class ManagedRow:
    """A row of the home page with what a manager sees of it."""

    row: HomeRow
    round: Round | None
    next_step: NextStep | None
    """None for those who are no managers, and beyond the first projects: it takes some queries."""


@register.simple_tag
def with_conversations(rows: Sequence[HomeRow]) -> set[int]:
    """Return the keys of those projects whose annotators may begin conversations."""
    return open_for_conversations(row.project.pk for row in rows)


@register.simple_tag
def with_next_steps(rows: Sequence[HomeRow]) -> list[ManagedRow]:
    """Return each row of the home page, for managers with the newest round and the next step."""
    projects = [row.project.pk for row in rows if row.is_manager]
    rounds = {
        round_.project_id: round_
        for round_ in Round.objects.filter(project__in=projects)
        .select_related("project", "policy")
        .order_by("number")
    }
    first = set(projects[:_NEXT_STEPS])
    return [
        ManagedRow(
            row,
            newest := rounds.get(row.project.pk),
            next_step_of(row.project, newest) if row.project.pk in first else None,
        )
        for row in rows
    ]


@register.simple_tag(takes_context=True)
def project_sections(context: Context) -> Sequence[Entry]:
    """Return the sections of the page's `project` that its reader may open; empty without a project."""
    project, request = context.get("project"), context.get("request")
    if not isinstance(project, Project) or request is None or not request.user.is_authenticated:
        return ()
    match = request.resolver_match
    url_name = match.url_name if match else ""
    return () if url_name in FULL_WIDTH else tuple(entries(project, request.user, url_name))
