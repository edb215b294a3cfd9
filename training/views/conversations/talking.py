"""Talking with blind checkpoints: the list, one conversation, its messages, its responses, its end."""

import json
import uuid
from collections.abc import Iterator

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from annotation.choices import Role, TurnState
from annotation.errors import Refusal
from annotation.models import Conversation, ConversationTurn, Project
from annotation.selectors import access
from annotation.selectors.conversations import conversations_of, last_turn, why_not
from annotation.services.conversations import end_conversation
from annotation.views.access import Request, project_page
from training.engine import EngineError
from training.forms.conversations import BeginForm, EndForm
from training.selectors.conversation_transcripts import transcript_of
from training.selectors.conversations import settings_of, standing_of
from training.services.conversations import (
    begin,
    generate_turn,
    say,
    stream_turn,
    take_up_turn,
    trouble_in_words,
)
from training.views.conversations.screen import Addresses, Talk, show_talk

_ON_A_PAGE = 50


@require_safe
@project_page(role=Role.ANNOTATOR)
def conversations(request: Request, project: Project) -> HttpResponse:
    """List one's conversations and the tasks to begin with; managers see all. For members."""
    return _list(request, project)


@require_POST
@project_page(role=Role.ANNOTATOR)
def conversation_begin(request: Request, project: Project) -> HttpResponse:
    """Begin a conversation, with a task or without one. For annotators."""
    form = BeginForm(request.POST, project=project)
    if not form.is_valid():
        return _list(request, project, trouble=_("This task is no longer offered. Choose another."))
    try:
        begun = begin(project=project, annotator=request.user, task=form.cleaned_data["task"])
    except Refusal as refusal:
        return _list(request, project, trouble=refusal.message)
    return redirect(begun)


@require_safe
@never_cache
@project_page(role=Role.ANNOTATOR)
def conversation(request: Request, project: Project, pk: uuid.UUID) -> HttpResponse:
    """Talk, or judge the responses to one's last message. For the annotator who talks; managers read it."""
    conversation = _conversation_or_404(request, project, pk)
    if conversation.annotator_id != request.user.pk:
        return _read(request, conversation)
    return _screen(request, conversation)


@require_POST
@project_page(role=Role.ANNOTATOR)
def conversation_say(request: Request, project: Project, pk: uuid.UUID) -> HttpResponseBase:
    """Send the next message. For the annotator who talks.

    The script has the responses generated afterwards; without it they are generated first.
    """
    conversation = _own_conversation(request, project, pk)
    text = request.POST.get("text", "")
    try:
        turn = say(conversation=conversation, annotator=request.user, text=text)
    except Refusal as refusal:
        return _screen(request, conversation, status=422, trouble=refusal.message, text=text)
    if request.htmx:
        return _screen(request, conversation)
    return generated(request, turn, Addresses.of_member(conversation))


@require_POST
@project_page(role=Role.ANNOTATOR)
def conversation_write(request: Request, project: Project, pk: uuid.UUID) -> HttpResponseBase:
    """Generate the responses to the last message, streamed to the script. For the annotator who talks."""
    conversation = _own_conversation(request, project, pk)
    return written(request, conversation, Addresses.of_member(conversation))


@require_POST
@project_page(role=Role.ANNOTATOR)
def conversation_end(request: Request, project: Project, pk: uuid.UUID) -> HttpResponse:
    """End a conversation with a rating. For the annotator who talks, and for managers."""
    conversation = _conversation_or_404(request, project, pk)
    form = EndForm(request.POST)
    trouble = ""
    if form.is_valid():
        try:
            end_conversation(conversation=conversation, actor=request.user, **form.cleaned_data)
        except Refusal as refusal:
            trouble = refusal.message
    else:
        trouble = _("Choose one of the ratings.")
    if trouble and conversation.annotator_id == request.user.pk:
        return _screen(request, conversation, status=422, trouble=trouble)
    if request.htmx:
        return _screen(request, _conversation_or_404(request, project, pk))
    return redirect(conversation)


# ── Shared with arenas ────────────────────────────────────────────────────────────────


def generated(request: Request, turn: ConversationTurn, addresses: Addresses) -> HttpResponse:
    """Generate the responses of a turn, then go back to the page."""
    try:
        generate_turn(turn=turn)
    except EngineError:
        messages.error(request, trouble_in_words())
    return redirect(addresses.page)


def written(request: Request, conversation: Conversation, addresses: Addresses) -> HttpResponseBase:
    """Stream the responses to the newest message to the script; without it generate them first."""
    turn = last_turn(conversation)
    if turn is None or turn.comparison_id is not None:
        return HttpResponse(status=204) if request.htmx else redirect(addresses.page)
    turn.conversation = conversation
    if not request.htmx:
        return generated(request, turn, addresses)
    response = StreamingHttpResponse(_events(turn), content_type="text/event-stream")
    response["Cache-Control"] = "no-store"
    # A proxy that buffers the response would make the stream pointless.
    response["X-Accel-Buffering"] = "no"
    return response


def _events(turn: ConversationTurn) -> Iterator[bytes]:
    """Yield what is released together as it comes, then the end; or why it could not be generated."""
    try:
        for pieces in stream_turn(turn=turn):
            yield _event({"pieces": pieces})
    except EngineError:
        yield _event({"error": trouble_in_words()})
        return
    yield _event({"done": True})


def _event(data: dict[str, object]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


# ── Helpers ───────────────────────────────────────────────────────────────────────────


def _conversation_or_404(request: Request, project: Project, pk: uuid.UUID) -> Conversation:
    """Return a conversation that this person may read: their own, or any for managers."""
    rows = Conversation.objects.select_related("task", "annotator").filter(
        project=project, arena_talk__isnull=True
    )
    conversation = get_object_or_404(rows, pk=pk)
    if conversation.annotator_id != request.user.pk and not access.may(request.user, project, Role.MANAGER):
        raise Http404
    conversation.project = project
    return conversation


def _own_conversation(request: Request, project: Project, pk: uuid.UUID) -> Conversation:
    conversation = _conversation_or_404(request, project, pk)
    if conversation.annotator_id != request.user.pk:
        raise Http404
    return conversation


def _screen(
    request: Request, conversation: Conversation, *, status: int = 200, trouble: str = "", text: str = ""
) -> HttpResponse:
    standing = take_up_turn(standing=standing_of(conversation))
    talk = Talk(standing=standing, addresses=Addresses.of_member(conversation), trouble=trouble, text=text)
    # A message that came while responses wait for judgment: they are shown, and nothing is lost.
    return show_talk(request, talk, status=200 if standing.state == TurnState.JUDGING else status)


def _read(request: Request, conversation: Conversation) -> HttpResponse:
    """Show a conversation to a manager, with who wrote what."""
    context = {
        "project": conversation.project,
        "conversation": conversation,
        "turns": transcript_of(conversation, named=True),
    }
    return render(request, "training/conversations/read.html", context)


def _list(request: Request, project: Project, *, trouble: str = "") -> HttpResponse:
    is_manager = access.may(request.user, project, Role.MANAGER)
    rows = conversations_of(project, annotator=None if is_manager else request.user)
    settings = settings_of(project)
    context = {
        "project": project,
        "is_manager": is_manager,
        "page": Paginator(rows.filter(arena_talk__isnull=True), _ON_A_PAGE).get_page(request.GET.get("page")),
        "is_open": settings is not None and settings.is_open,
        "why_not": why_not(project, request.user),
        "tasks": project.conversation_tasks.filter(archived_at__isnull=True),
        "trouble": trouble,
    }
    return render(
        request, "training/conversations/conversations.html", context, status=422 if trouble else 200
    )
