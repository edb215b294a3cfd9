"""A run: its page, its live parts, and what of it can be taken away."""

import json

from django.http import (
    HttpResponse,
    HttpResponseBase,
    HttpResponseNotModified,
    JsonResponse,
    StreamingHttpResponse,
)
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from annotation.views.access import Request
from training.contract import read_evaluation
from training.curves import MOST_LINES
from training.held_out import held_out_of
from training.models import Run
from training.run_downloads import archive_of, events_of
from training.run_folders import folder_of
from training.samples import MEASURES
from training.selectors_runs import (
    IS_GOING_ON,
    dropped_of,
    is_interrupted,
    log_of,
    machine_of,
    news_of,
    overlaid_on,
    overlay_choices,
    plots_of,
    samples_of,
    state_mark,
    watch_warnings_of,
)
from training.selectors_validation import run_validation
from training.views.access import require_manager


@require_safe
def run(request: Request, pk: int) -> HttpResponse:
    """One training job: its curves beside those of other runs, its log, what it was told. For managers."""
    found = _run(request, pk)
    beside = overlaid_on(found, request.GET.getlist("with"))
    asked, step = request.GET.get("colour"), request.GET.get("step", "")
    measure = next((one for one in MEASURES if one == asked), MEASURES[0])
    report = read_evaluation(folder_of(found))
    context = {
        **_live(found),
        "plots": plots_of([found, *beside]),
        "shown": [found, *beside],
        "choices": overlay_choices(found, beside),
        "most_beside": MOST_LINES - 1,
        "samples": samples_of(found, step=int(step) if step.isdecimal() else None, measure=measure),
        "watch_warnings": watch_warnings_of(found),
        "held_out": held_out_of(report),
        "validation": run_validation(found, report),
        "dropped": dropped_of(found),
        "spec": json.dumps(found.spec, indent=2, ensure_ascii=False),
    }
    return render(request, "training/run.html", context)


@require_safe
def live(request: Request, pk: int) -> HttpResponse:
    """What of a run's page changes by itself: state, machine, end of the log; 304 as long as nothing did.
    For managers."""
    found = _run(request, pk)
    mark = f'"{state_mark(found)}"'
    if request.headers.get("If-None-Match") == mark:
        answer: HttpResponse = HttpResponseNotModified()
    else:
        answer = render(request, "training/run_live.html", _live(found))
    answer["ETag"] = mark
    answer["Cache-Control"] = "private, no-cache"
    return answer


@require_safe
def curves(request: Request, pk: int) -> JsonResponse:
    """What is new in the metrics of a run and those drawn beside it since the marks `since`. For managers."""
    found = _run(request, pk)
    runs = [found, *overlaid_on(found, request.GET.getlist("with"))]
    answer = JsonResponse(news_of(runs, marks=request.GET.getlist("since")))
    answer["Cache-Control"] = "private, no-store"
    return answer


@require_safe
def download(request: Request, pk: int) -> HttpResponseBase:
    """Everything in a run's folder as a ZIP archive, without secrets. For managers."""
    found = _run(request, pk)
    name, stream = archive_of(found)
    return _attached(StreamingHttpResponse(stream, content_type="application/zip"), name)


@require_safe
def tensorboard(request: Request, pk: int) -> HttpResponseBase:
    """A run's metrics as an event file for TensorBoard. For managers."""
    found = _run(request, pk)
    name, stream = events_of(found)
    return _attached(StreamingHttpResponse(stream, content_type="application/octet-stream"), name)


def _run(request: Request, pk: int) -> Run:
    related = ("snapshot__project", "parent", "checkpoint", "round_step__round__project")
    found = get_object_or_404(Run.objects.select_related(*related), pk=pk)
    require_manager(request.user, found.snapshot.project)
    return found


def _live(run: Run) -> dict[str, object]:
    return {
        "project": run.snapshot.project,
        "run": run,
        "goes_on": run.state in IS_GOING_ON,
        "interrupted": is_interrupted(run),
        "machine": machine_of(run),
        "log": log_of(run),
    }


def _attached(answer: HttpResponseBase, name: str) -> HttpResponseBase:
    """An answer that a browser saves under `name`: a checkpoint's or run's, so of plain characters."""
    answer["Content-Disposition"] = f'attachment; filename="{name}"'
    answer["X-Accel-Buffering"] = "no"
    return answer
