"""Showing: the permanent page, the answers as they are written, the vote."""

import json
from collections.abc import Iterator

from django.contrib import messages
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from annotation.errors import Refusal
from annotation.models import Judgment
from annotation.views.access import Request
from training.engine import EngineError
from training.forms import BesideVoteForm
from training.models import SideBySideAnswer
from training.services.side_by_side import reveal_names, vote_beside, write_answer, write_answers
from training.views.compare.access import stored, trouble_of
from training.views.compare.columns import columns_of


@require_safe
@never_cache
def compare_shown(request: Request, slug: str) -> HttpResponse:
    """The stored answers with all that is known of them; a fragment for the script. For managers."""
    shown = stored(request, slug)
    columns = columns_of(shown)
    ranks = _ranks(shown.judgment) if shown.judgment else {}
    context = {
        "shown": shown,
        "project": shown.project,
        "columns": [(column, ranks.get(column.position)) for column in columns],
        "past": shown.messages if shown.shared else None,
        "complete": all(column.written for column in columns),
        "vote_form": BesideVoteForm(shown=shown),
        "verdict": shown.judgment.get_verdict_display() if shown.judgment else "",
    }
    part = request.GET.get("part") == "answers"
    return render(
        request, "training/compare_answers.html" if part else "training/compare_shown.html", context
    )


@require_POST
def compare_write(request: Request, slug: str) -> HttpResponseBase:
    """Have answers written that are not there yet: one as events, or all and back to the page. For managers.

    Where names are hidden always all: how fast each writes would tell who it is.
    """
    shown = stored(request, slug)
    place = request.POST.get("position", "")
    if not place.isdigit() or shown.is_hidden:
        try:
            write_answers(shown=shown)
        except EngineError as error:
            messages.error(request, trouble_of(error, hidden=shown.is_hidden))
        return redirect(shown)
    answers = SideBySideAnswer.objects.select_related("checkpoint", "side_by_side__scorer")
    answer = answers.filter(side_by_side=shown, position=int(place)).first()
    if answer is None:
        raise Http404
    response = StreamingHttpResponse(_events(answer), content_type="text/event-stream")
    response["Cache-Control"] = "no-store"
    # A proxy that collects the answer before it passes it on would make the stream pointless.
    response["X-Accel-Buffering"] = "no"
    return response


@require_POST
def compare_reveal(request: Request, slug: str) -> HttpResponse:
    """Show names before the vote, which is unblinded then. For managers."""
    shown = stored(request, slug)
    reveal_names(shown=shown, user=request.user)
    return redirect(shown)


@require_POST
def compare_vote(request: Request, slug: str) -> HttpResponse:
    """Store a vote; names are told from then on. For managers."""
    shown = stored(request, slug)
    form = BesideVoteForm(request.POST, shown=shown)
    if not form.is_valid():
        for errors in form.errors.values():
            messages.error(request, str(errors[0]))
        return redirect(shown)
    try:
        vote_beside(shown=shown, voter=request.user, verdict=form.verdict, ranks=form.ranks)
    except Refusal as refusal:
        messages.error(request, refusal.message)
    return redirect(shown)


def _events(answer: SideBySideAnswer) -> Iterator[bytes]:
    """The text as it comes, and that it is done; or why it could not be written."""
    try:
        for text in write_answer(answer=answer):
            yield _event({"text": text})
    except EngineError as error:
        yield _event({"error": str(error)})
        return
    yield _event({"done": True})


def _event(told: dict[str, object]) -> bytes:
    return f"data: {json.dumps(told)}\n\n".encode()


def _ranks(judgment: Judgment) -> dict[int, int]:
    """Position → rank: the judgment has completion ids, in the order in which they stood."""
    ranks = {row.completion_id: row.rank for row in judgment.ranks.all()}
    order = judgment.assignment.display_order
    return {place: ranks[pk] for place, pk in enumerate(order, start=1) if pk in ranks}
