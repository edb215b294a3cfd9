"""Where things came from: checkpoint → run → snapshot → judgment → completion → checkpoint."""

import json

from django.conf import settings
from django.core.paginator import Paginator
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from annotation.models import Completion
from annotation.selectors import projects_for
from annotation.views.access import Request
from training.contract import read_evaluation
from training.held_out import held_out_of
from training.models import Checkpoint, Run, Snapshot
from training.samples import MEASURES
from training.selectors import (
    checkpoints_for,
    judgments_in,
    lineage_of,
    placed_candidates,
    request_of,
    run_view,
    samples_of,
    watch_warnings_of,
)
from training.views.access import require_manager

_ROWS_ON_A_PAGE = 50


@require_safe
def checkpoints(request: Request) -> HttpResponse:
    """All checkpoints of one's projects, newest first. For managers."""
    require_manager(request.user, None)
    listed = checkpoints_for(request.user).select_related("project", "parent", "run__round_step__round")
    page = Paginator(listed, _ROWS_ON_A_PAGE).get_page(request.GET.get("page"))
    return render(request, "training/checkpoints.html", {"page": page})


@require_safe
def checkpoint(request: Request, name: str) -> HttpResponse:
    """One checkpoint: what it learnt from, what it descends from, what it wrote. For managers."""
    related = ("project", "parent", "source", "run__snapshot", "run__round_step__round__project")
    found = get_object_or_404(Checkpoint.objects.select_related(*related), name=name)
    require_manager(request.user, found.project)
    counts = found.manifest.get("dropped_counts", {})
    context = {
        "checkpoint": found,
        "project": found.project,
        "lineage": lineage_of(found),
        "children": found.children.order_by("pk"),
        "metrics": sorted(found.manifest.get("metrics", {}).items()),
        "dropped": found.manifest.get("dropped", []),
        "dropped_counts": sorted(counts.items()),
        "left_out": sum(counts.values()),
        "warnings": found.manifest.get("warnings", []),
        "answers": found.source.completions.count() if found.source else 0,
    }
    return render(request, "training/checkpoint.html", context)


@require_safe
def run(request: Request, pk: int) -> HttpResponse:
    """One training job: its curves, its log, what it was told. For managers."""
    related = ("snapshot__project", "parent", "checkpoint", "round_step__round__project")
    found = get_object_or_404(Run.objects.select_related(*related), pk=pk)
    require_manager(request.user, found.snapshot.project)
    asked, step = request.GET.get("colour"), request.GET.get("step", "")
    measure = next((one for one in MEASURES if one == asked), MEASURES[0])
    context = {
        "project": found.snapshot.project,
        "run": found,
        "samples": samples_of(found, step=int(step) if step.isdecimal() else None, measure=measure),
        "watch_warnings": watch_warnings_of(found),
        "view": run_view(found, log_lines=200),
        "held_out": held_out_of(read_evaluation(found.path)),
        "spec": json.dumps(found.spec, indent=2, ensure_ascii=False),
    }
    return render(request, "training/run.html", context)


@require_safe
def snapshot(request: Request, digest: str) -> HttpResponse:
    """One snapshot with every judgment in it, page by page. For managers."""
    own = Snapshot.objects.filter(digest=digest, project__in=projects_for(request.user))
    found = own.select_related("project", "created_by").first()
    if found is None:
        raise Http404
    require_manager(request.user, found.project)
    page = Paginator(judgments_in(found), _ROWS_ON_A_PAGE).get_page(request.GET.get("page"))
    context = {
        "project": found.project,
        "snapshot": found,
        "page": page,
        "rows": [(judgment, placed_candidates(judgment)) for judgment in page],
        "runs": found.runs.order_by("pk"),
    }
    return render(request, "training/snapshot.html", context)


@require_safe
def completion(request: Request, pk: int) -> HttpResponse:
    """One answer: who wrote it, with which seed, and how to have it written again. For managers."""
    related = ("prompt__project", "source__checkpoint")
    found = get_object_or_404(Completion.objects.select_related(*related), pk=pk)
    require_manager(request.user, found.prompt.project)
    asked = request_of(found)
    context = {
        "project": found.prompt.project,
        "completion": found,
        "writer": getattr(found.source, "checkpoint", None),
        "places": found.ranks.select_related("judgment__annotator").order_by("judgment_id")[:_ROWS_ON_A_PAGE],
        "request_body": json.dumps(asked, indent=2, ensure_ascii=False) if asked else "",
        "server": settings.RONDO_MODEL_SERVER_URL,
    }
    return render(request, "training/completion.html", context)
