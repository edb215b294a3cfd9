"""The page of search results, whose fragment the command palette shows, and the page of components."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from django.db.models import Max, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from annotation.models import Project, Prompt, User
from annotation.selectors import access
from annotation.selectors.tables.search import matching
from annotation.statistics.plots import SHARE, bars
from training.models import Run
from training.selectors.checkpoints import found_checkpoints
from training.selectors.projects import checkpoints_for, managed_projects
from webapp.navigation.sections import entries

# Search of the command palette: projects, pages, prompts, checkpoints and runs that somebody may open.

_MOST = 6
"""Results of a kind."""
_SHORTEST_TEXT = 3
"""Characters from which on prompts are searched."""
_PROMPT_LENGTH = 90


@dataclass(frozen=True, slots=True)
class Result:
    """A page that matches, with a hint about where it belongs."""

    label: str | Promise
    address: str
    icon: str
    hint: str | Promise = ""


@dataclass(frozen=True, slots=True)
class ResultGroup:
    """Results of one kind."""

    title: str
    results: Sequence[Result]


def search(*, user: User, text: str, project: Project | None) -> list[ResultGroup]:
    """Return what matches `text`, by kind; without a text the pages of `project` and the projects."""
    text = text.strip().replace("\0", "")
    kinds = [
        (_("Pages"), _pages(user, text, project)),
        (_("Projects"), _projects(user, text)),
        (_("Prompts"), _prompts(user, text, project)),
        (_("Checkpoints"), _checkpoints(user, text)),
        (_("Runs"), _runs(user, text)),
    ]
    groups = [ResultGroup(title, list(islice(results, _MOST))) for title, results in kinds]
    return [group for group in groups if group.results]


def _pages(user: User, text: str, project: Project | None) -> Iterator[Result]:
    query = text.casefold()
    if project is not None:
        for section in entries(project, user, ""):
            for page in section.pages:
                if query in f"{section.label} {page.label}".casefold():
                    yield Result(page.label, page.address, section.icon, project.name)
    pages = [(_("Projects"), "projects", "folder"), (_("Your account"), "account", "user")]
    if user.is_superuser:
        pages += [(_("Status"), "status", "activity"), (_("Activity of all projects"), "audit", "history")]
    if user.is_staff:
        pages.append((_("Administration"), "admin:index", "shield"))
    for label, name, icon in pages:
        if text and query in label.casefold():
            yield Result(label, reverse(name), icon)


def _projects(user: User, text: str) -> Iterator[Result]:
    projects = access.projects_for(user).filter(Q(name__icontains=text) | Q(slug__icontains=text))
    for project in projects.order_by("name")[:_MOST]:
        yield Result(project.name, reverse("project", args=[project.slug]), "folder")


def _prompts(user: User, text: str, project: Project | None) -> Iterator[Result]:
    if len(text) < _SHORTEST_TEXT:
        return
    projects = managed_projects(user)
    if project is not None:
        projects = projects.filter(pk=project.pk)
    prompts, _far = matching(Prompt.objects.filter(project__in=projects), text, column="messages")
    shown = prompts.annotate(newest=Max("comparisons")).filter(newest__isnull=False)
    for prompt in shown.select_related("project").order_by("-pk")[:_MOST]:
        address = reverse("statistics-item", args=[prompt.project.slug, prompt.newest])
        label = Truncator(prompt.messages[-1]["content"]).chars(_PROMPT_LENGTH)
        yield Result(label, address, "message-square", prompt.project.name)


def _checkpoints(user: User, text: str) -> Iterator[Result]:
    if text:
        checkpoints = found_checkpoints(checkpoints_for(user), text=text, tag="", kind="")
        for checkpoint in checkpoints[:_MOST]:
            hint = checkpoint.get_kind_display()
            yield Result(checkpoint.name, checkpoint.get_absolute_url(), "box", hint)


def _runs(user: User, text: str) -> Iterator[Result]:
    if text:
        of_projects = Run.objects.filter(snapshot__project__in=managed_projects(user))
        for run in of_projects.filter(name__icontains=text).order_by("-pk")[:_MOST]:
            yield Result(run.name, reverse("run", args=[run.pk]), "chart-line", run.get_state_display())


COLOURS = ("text", "muted", "accent", "good", "warn", "bad")
"""Colours of text; each stands on the three surfaces of both themes."""
SURFACES = ("canvas", "surface", "raised")
SPACES = range(1, 9)
_ICONS = (
    *("house", "pencil-line", "database", "gauge", "repeat", "box", "columns-2", "settings"),
    "search",
    "flag",
)


@require_safe
def design(request: HttpRequest) -> HttpResponse:
    """Show the components that pages are made of. For everyone."""
    context = {
        "colours": COLOURS,
        "surfaces": SURFACES,
        "spaces": SPACES,
        "icons": _ICONS,
        "bars": bars([3, 5, 2, 8, 6, 9, 4], width=120, height=32),
        "mark": SHARE.interval(0.62, 0.55, 0.7),
    }
    return render(request, "navigation/design.html", context)


@require_safe
def results(request: HttpRequest) -> HttpResponse:
    """Search what one may open. For everyone."""
    user = request.user
    assert user.is_authenticated  # noqa: S101 - LoginRequiredMiddleware refuses all others
    text = request.GET.get("q", "")[:200]
    project = access.projects_for(user).filter(slug=request.GET.get("project", "").replace("\0", "")).first()
    groups = search(user=user, text=text, project=project)
    template = "navigation/results.html" if request.htmx else "navigation/search.html"  # type: ignore[attr-defined]
    return render(request, template, {"groups": groups, "text": text, "project": project})
