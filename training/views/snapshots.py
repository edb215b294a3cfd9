"""Training data: a snapshot with its judgments, and a completion with its provenance."""

import json

from django.conf import settings
from django.core.paginator import Paginator
from django.db.models import BigIntegerField
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from annotation.models import Completion
from annotation.selectors.access import projects_for
from annotation.views.access import Request
from training.models import Snapshot
from training.selectors.projects import (
    judgments_in,
    judgments_of,
    placed_candidates,
    request_of,
    require_manager,
)

_ROWS_ON_A_PAGE = 50


@require_safe
def snapshot(request: Request, digest: str) -> HttpResponse:
    """One snapshot with every judgment in it, page by page or at `?judgment=`. For managers."""
    snapshots = Snapshot.objects.filter(digest=digest, project__in=projects_for(request.user))
    snapshot = snapshots.select_related("project", "created_by").first()
    if snapshot is None:
        raise Http404
    require_manager(request.user, snapshot.project)
    number = _page_with(snapshot, request.GET.get("judgment", "")) or request.GET.get("page")
    page = Paginator(judgments_in(snapshot), _ROWS_ON_A_PAGE).get_page(number)
    context = {
        "project": snapshot.project,
        "snapshot": snapshot,
        "page": page,
        "rows": [(judgment, placed_candidates(judgment)) for judgment in page],
        "runs": snapshot.runs.order_by("pk"),
    }
    return render(request, "training/snapshot.html", context)


def _page_with(snapshot: Snapshot, judgment: str) -> int | None:
    """Return the number of the page on which a judgment stands; None for none."""
    if not judgment.isdecimal() or int(judgment) > BigIntegerField.MAX_BIGINT:
        return None
    return snapshot.judgments.filter(pk__lt=int(judgment)).count() // _ROWS_ON_A_PAGE + 1


@require_safe
def completion(request: Request, pk: int) -> HttpResponse:
    """One answer: who wrote it, with which seed, and how to have it written again. For managers."""
    related = ("prompt__project", "source__checkpoint")
    completion = get_object_or_404(Completion.objects.select_related(*related), pk=pk)
    require_manager(request.user, completion.prompt.project)
    body = request_of(completion)
    context = {
        "project": completion.prompt.project,
        "completion": completion,
        "writer": getattr(completion.source, "checkpoint", None),
        "places": judgments_of(completion)[:_ROWS_ON_A_PAGE],
        "request_body": json.dumps(body, indent=2, ensure_ascii=False) if body else "",
        "server": settings.RONDO_MODEL_SERVER_URL,
    }
    return render(request, "training/completion.html", context)
