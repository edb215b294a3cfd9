"""Pages of checkpoints: registry, evaluations, drift of reward models."""

from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Q
from django.http import Http404, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from annotation.choices import JobState, Role
from annotation.errors import Refusal
from annotation.models import Project
from annotation.selectors.tables.metadata import metadata_names
from annotation.text.rendering import render_markdown
from annotation.views.access import Request, project_page, refusals_shown
from training.choices import WRITES_TEXT, CheckpointKind
from training.figures.held_out import figures_of
from training.figures.model_card import model_card
from training.files.shared import StoreRefusal, fetched
from training.models import Checkpoint, CheckpointExport, DriftFigure, DriftMeasurement
from training.selectors.checkpoints import (
    ORDERS,
    card_of,
    family_of,
    found_checkpoints,
    latest_evaluation,
    lineage_picture,
    ordered_checkpoints,
    rounds_of,
    tags_of,
    uses_of,
    with_evaluations,
)
from training.selectors.drift import drift_page, items_behind, items_of
from training.selectors.evaluations import EvaluationSummary, report_file, report_of, slices_of
from training.selectors.projects import checkpoints_for, lineage_of, managed_projects, require_manager
from training.services.checkpoint_exports import archive_name, hub_is_set, request_export
from training.services.checkpoint_files import check_files, delete_files
from training.services.checkpoints import describe_checkpoint
from training.services.drift import request_measurement
from training.services.runs.files import zip_of_folder

# ── Registry ──


_ROWS_ON_A_PAGE = 50
_EXPORTS_SHOWN = 5
_HEADINGS = (
    ("name", gettext_lazy("Name")),
    ("kind", gettext_lazy("Kind")),
    ("", gettext_lazy("Project")),
    ("round", gettext_lazy("Round")),
    ("", gettext_lazy("Parent")),
    ("accuracy", gettext_lazy("Held-out accuracy")),
    ("win_rate", gettext_lazy("Win rate vs. parent")),
    ("created", gettext_lazy("Created")),
)
"""Columns of the list, with the order of those that have one."""


@require_safe
def checkpoints(request: Request) -> HttpResponse:
    """List the checkpoints of one project, or of all one's projects, filtered and ordered. For managers."""
    require_manager(request.user, None)
    text_filters = {name: request.GET.get(name, "").strip() for name in ("text", "tag", "kind")}
    number, evaluated = request.GET.get("round", ""), request.GET.get("evaluated") == "1"
    slug = request.GET.get("project", "")
    project = managed_projects(request.user).filter(slug=slug).first()
    seen = checkpoints_for(request.user)
    if project is not None:
        seen = seen.filter(Q(project=project) | Q(project=None))
    round_number = int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else None
    matches = found_checkpoints(seen, **text_filters, round_number=round_number, evaluated=evaluated)
    sort = request.GET.get("sort", "")
    sort = sort if sort.removeprefix("-") in ORDERS else ""
    listed = Paginator(with_evaluations(ordered_checkpoints(matches, sort)), _ROWS_ON_A_PAGE)
    chosen = text_filters | {
        "round": str(round_number or ""),
        "evaluated": "1" if evaluated else "",
        "project": project.slug if project else "",
    }
    context = {
        "project": project,
        "page": listed.get_page(request.GET.get("page")),
        "asked": chosen,
        "is_filtered": any(value for name, value in chosen.items() if name != "project"),
        "headings": [
            (label, *_order(key, sort, chosen)) if key else (label, "", "") for key, label in _HEADINGS
        ],
        "query": chosen | {"sort": sort},
        "kinds": CheckpointKind.choices,
        "tags": tags_of(seen),
        "rounds": rounds_of(seen),
        "writes_text": WRITES_TEXT,
    }
    answer = render(
        request,
        "training/checkpoints_table.html" if request.htmx else "training/checkpoints.html",
        context,
    )
    patch_vary_headers(answer, ["HX-Request"])
    return answer


def _order(key: str, sort: str, chosen: dict[str, str]) -> tuple[str, str]:
    """Return the address of a click on a column's heading, and its order now, as ARIA says it."""
    turned = key if sort == f"-{key}" or (not sort and key == "name") else f"-{key}"
    now = {f"-{key}": "descending", key: "ascending"}.get(sort, "")
    filters = {name: value for name, value in chosen.items() if value}
    return f"{reverse('checkpoints')}?{urlencode(filters | {'sort': turned})}", now


@require_safe
def checkpoint(request: Request, name: str) -> HttpResponse:
    """One checkpoint: what it learnt from, what it descends from, what can be done with it. For managers."""
    return _page(request, _checkpoint(request, name))


@require_POST
def describe(request: Request, name: str) -> HttpResponse:
    """Give it other tags and notes. For managers."""
    checkpoint = _changeable_checkpoint(request, name)
    tags, notes = request.POST.get("tags", ""), request.POST.get("notes", "").replace("\r\n", "\n")
    try:
        describe_checkpoint(
            checkpoint=checkpoint, tags=tags.split(","), notes=notes, described_by=request.user
        )
    except Refusal as refusal:
        entered = {"tags": tags, "notes": notes, "refusal": refusal}
        return _page(request, checkpoint, status=422, entered=entered)
    messages.success(request, _("Saved."))
    return redirect(checkpoint)


@require_POST
def verify(request: Request, name: str) -> HttpResponse:
    """Read every file and show what was found of each. For managers."""
    checkpoint = _checkpoint(request, name)
    try:
        return _page(request, checkpoint, files=check_files(checkpoint, in_store=True))
    except Refusal as refusal:
        messages.error(request, refusal.message)
        return redirect(checkpoint)


@require_safe
def card(request: Request, name: str) -> HttpResponse:
    """The model card as a Markdown file. For managers."""
    checkpoint = _checkpoint(request, name)
    answer = HttpResponse(model_card(card_of(checkpoint)), content_type="text/markdown; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="{checkpoint.name}.md"'
    return answer


@require_POST
def export(request: Request, name: str) -> HttpResponse:
    """Have it written as a folder for others, or pushed to a hub. For managers."""
    checkpoint = _changeable_checkpoint(request, name)
    with refusals_shown(request):
        request_export(
            checkpoint=checkpoint,
            merged=request.POST.get("form") == "merged",
            repository=request.POST.get("repository", "").strip() if "push" in request.POST else "",
            private="public" not in request.POST,
            requested_by=request.user,
        )
    return redirect(f"{checkpoint.get_absolute_url()}#exports")


@require_safe
def exports(request: Request, name: str) -> HttpResponse:
    """Show the progress of exports: a fragment that reloads itself until they end. For managers."""
    checkpoint = _checkpoint(request, name)
    return render(request, "training/checkpoint_exports.html", _exports(checkpoint))


@require_safe
def export_download(request: Request, name: str, pk: int) -> HttpResponseBase:
    """An exported folder as a ZIP archive. For managers."""
    checkpoint = _checkpoint(request, name)
    exported = get_object_or_404(CheckpointExport, pk=pk, checkpoint=checkpoint, state=JobState.FINISHED)
    try:
        if not exported.folder or not fetched(exported.path).is_dir():
            raise Http404
    except StoreRefusal as refusal:
        messages.error(request, refusal.message)
        return redirect("checkpoint", name)
    answer = StreamingHttpResponse(
        zip_of_folder(exported.path, name=checkpoint.name), content_type="application/zip"
    )
    answer["Content-Disposition"] = f'attachment; filename="{archive_name(exported)}.zip"'
    return answer


@require_http_methods(["GET", "HEAD", "POST"])
def delete(request: Request, name: str) -> HttpResponse:
    """Ask for confirmation, then delete the files; the record stays. For managers."""
    checkpoint = _changeable_checkpoint(request, name)
    if request.method == "POST":
        with refusals_shown(request):
            delete_files(checkpoint=checkpoint, deleted_by=request.user)
        return redirect(checkpoint)
    context = {"checkpoint": checkpoint, "project": checkpoint.project, "uses": uses_of(checkpoint)}
    return render(request, "training/checkpoint_delete.html", context)


def _checkpoint(request: Request, name: str) -> Checkpoint:
    related = ("project", "parent", "source", "base", "run__snapshot", "run__round_step__round__project")
    checkpoint = get_object_or_404(Checkpoint.objects.select_related(*related), name=name)
    require_manager(request.user, checkpoint.project)
    return checkpoint


def _changeable_checkpoint(request: Request, name: str) -> Checkpoint:
    """A checkpoint that this person may change: one of no project is the administrators' business."""
    checkpoint = _checkpoint(request, name)
    if checkpoint.project is None and not request.user.is_superuser:
        raise PermissionDenied
    return checkpoint


def _page(request: Request, checkpoint: Checkpoint, *, status: int = 200, **more: object) -> HttpResponse:
    # NumPy is loaded when somebody opens this page, not with the web server.
    from training.selectors.judges import stand_in_by_scores

    counts = checkpoint.manifest.get("dropped_counts", {})
    figures = checkpoint.manifest.get("metrics", {})
    family = family_of(checkpoint)
    context = {
        "checkpoint": checkpoint,
        "project": checkpoint.project,
        "lineage": lineage_of(checkpoint),
        "children": checkpoint.children.order_by("pk"),
        "family": family,
        "picture": lineage_picture(family, here=checkpoint.name),
        "figures": figures_of({name: v for name, v in figures.items() if isinstance(v, int | float)}),
        "dropped": checkpoint.manifest.get("dropped", []),
        "dropped_counts": sorted(counts.items()),
        "left_out": sum(counts.values()),
        "warnings": checkpoint.manifest.get("warnings", []),
        "evaluation": latest_evaluation(checkpoint),
        "yardsticks": checkpoint.yardsticks.all(),
        "stand_in": stand_in_by_scores(checkpoint) if checkpoint.kind == CheckpointKind.REWARD else None,
        "answers": checkpoint.source.completions.count() if checkpoint.source else 0,
        "notes": render_markdown(checkpoint.notes),
        "card": render_markdown(model_card(card_of(checkpoint)).split("\n---\n", 1)[-1]),
        "may_change": checkpoint.project is not None or request.user.is_superuser,
        "has_files": not checkpoint.files_deleted_at and not checkpoint.server_url,
        "entered": {"tags": ", ".join(checkpoint.tags), "notes": checkpoint.notes},
        **_exports(checkpoint),
        **more,
    }
    return render(request, "training/checkpoint.html", context, status=status)


def _exports(checkpoint: Checkpoint) -> dict[str, object]:
    listed = list(checkpoint.exports.select_related("created_by", "checkpoint")[:_EXPORTS_SHOWN])
    return {
        "checkpoint": checkpoint,
        "exports": listed,
        "exports_go_on": any(row.goes_on for row in listed),
        "hub_is_set": hub_is_set(),
        "hub_variable": "RONDO_HUB_TOKEN",
    }


# ── Evaluations ──


_ROWS_ON_THE_PAGE = 20


@require_safe
def evaluation(request: Request, name: str) -> HttpResponse:
    """Show a checkpoint's evaluation against its parent, largest regressions first. For managers."""
    report = _report(request, name)
    project = report.evaluation.round.project
    names = metadata_names(project)
    by = request.GET.get("by", "")
    context = {
        "report": report,
        "project": project,
        "names": names,
        "by": by,
        "slices": slices_of(report.evaluation, report.people, by)
        if by in {each.name for each in names}
        else [],
        "rows": report.rows[:_ROWS_ON_THE_PAGE],
        "rows_left_out": max(0, len(report.rows) - _ROWS_ON_THE_PAGE),
    }
    return render(request, "training/evaluation.html", context)


@require_safe
def evaluation_file(request: Request, name: str) -> HttpResponse:
    """The report as one HTML file without script and without anything to fetch. For managers."""
    response = HttpResponse(report_file(_report(request, name)), content_type="text/html; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}-evaluation.html"'
    return response


def _report(request: Request, name: str) -> EvaluationSummary:
    checkpoint = get_object_or_404(Checkpoint.objects.select_related("project"), name=name)
    require_manager(request.user, checkpoint.project)
    report = report_of(checkpoint)
    if report is None:
        raise Http404
    return report


# ── Drift ──


_ITEMS_ON_A_PAGE = 25


@require_safe
@project_page(role=Role.MANAGER)
def drift(request: Request, project: Project) -> HttpResponse:
    """The matrix and the plots as they were last measured. For managers."""
    context = {"project": project, "page": drift_page(project)}
    return render(request, "training/drift.html", context)


@require_POST
@project_page(role=Role.MANAGER)
def measure(request: Request, project: Project) -> HttpResponse:
    """Have it measured anew. For managers."""
    with refusals_shown(request):
        request_measurement(project=project, requested_by=request.user)
    return redirect("drift", slug=project.slug)


@require_safe
@project_page(role=Role.MANAGER)
def progress(request: Request, project: Project) -> HttpResponse:
    """Show the progress of the measurement: a fragment that reloads itself until it ends, then the page.
    For managers."""
    measurement = DriftMeasurement.objects.filter(project=project).order_by("-pk").first()
    answer = render(request, "training/drift_progress.html", {"project": project, "measurement": measurement})
    if request.htmx and (measurement is None or not measurement.goes_on):
        answer["HX-Refresh"] = "true"
    return answer


@require_safe
@project_page(role=Role.MANAGER)
def items(request: Request, project: Project, name: str, number: int) -> HttpResponse:
    """The judgments behind a number of the matrix, beside what the reward model says. For managers."""
    reward = get_object_or_404(
        Checkpoint.objects.select_related("run__snapshot", "project"),
        name=name,
        project=project,
        kind=CheckpointKind.REWARD,
    )
    page = Paginator(items_behind(reward, number), _ITEMS_ON_A_PAGE).get_page(request.GET.get("page"))
    context = {
        "project": project,
        "reward": reward,
        "number": number,
        "page": page,
        "items": items_of(reward, list(page)),
        "figure": DriftFigure.objects.filter(checkpoint=reward, round_number=number).first(),
    }
    return render(request, "training/drift_items.html", context)
