"""The arena as a conversation: the same screen for annotators and guests, behind its link."""

import uuid
from collections.abc import Callable
from functools import wraps

from django.contrib.auth.decorators import login_not_required
from django.core.cache import cache
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from annotation.errors import Refusal
from annotation.forms import Entered, JudgmentForm
from annotation.models import Conversation
from annotation.services.conversations import end_conversation
from annotation.views.access import Request
from annotation.views.labelling.flow import doubts_left
from training.models import ArenaLink
from training.selectors.conversations import standing_of
from training.services.arenas import TooFast
from training.services.conversations import say, vote_on_turn
from training.views.comparing.arenas import link_of, too_fast, voter_of
from training.views.conversations.screen import (
    Addresses,
    Talk,
    ballot_of,
    judging_screen,
    show_judging,
    show_talk,
)
from training.views.conversations.talking import generated, written

_PAGE = "training/conversations/arena.html"
_WRITES_A_MINUTE = 20

Page = Callable[[Request, ArenaLink, Conversation], HttpResponseBase]


def _talk_page(view: Page) -> Callable[..., HttpResponseBase]:
    """Give the view the arena of the address and the visitor's own conversation in it."""

    @login_not_required
    @never_cache
    @wraps(view)
    def guarded(request: Request, slug: str, pk: uuid.UUID) -> HttpResponseBase:
        link = link_of(slug)
        voter = voter_of(request, link)
        if isinstance(voter, HttpResponse):
            return voter
        rows = Conversation.objects.select_related("task", "annotator", "project")
        conversation = get_object_or_404(rows, pk=pk, arena_talk__arena=link, annotator=voter or 0)
        return view(request, link, conversation)

    return guarded


@require_safe
@_talk_page
def arena_talk(request: Request, link: ArenaLink, conversation: Conversation) -> HttpResponseBase:
    """Talk with two blind models in an arena. For who began the conversation."""
    return _screen(request, link, conversation)


@require_POST
@_talk_page
def arena_talk_say(request: Request, link: ArenaLink, conversation: Conversation) -> HttpResponseBase:
    """Send the next message in an arena. For who began the conversation."""
    text = request.POST.get("text", "")
    try:
        turn = say(conversation=conversation, annotator=conversation.annotator, text=text)
    except TooFast as refusal:
        return _with_pause(_screen(request, link, conversation, trouble=refusal.message, text=text), refusal)
    except Refusal as refusal:
        return _screen(request, link, conversation, trouble=refusal.message, text=text)
    return (
        _screen(request, link, conversation)
        if request.htmx
        else generated(request, turn, _addresses(link, conversation))
    )


@require_POST
@_talk_page
def arena_talk_write(request: Request, link: ArenaLink, conversation: Conversation) -> HttpResponseBase:
    """Generate the responses to the last message in an arena. For who began the conversation."""
    key = f"arena-writes:{conversation.annotator_id}"
    cache.add(key, 0, 60)
    if cache.incr(key) > _WRITES_A_MINUTE:
        return too_fast(request, link, TooFast("too_fast", _("Too many requests. Try again in a minute.")))
    return written(request, conversation, _addresses(link, conversation))


@require_POST
@_talk_page
def arena_talk_vote(request: Request, link: ArenaLink, conversation: Conversation) -> HttpResponseBase:
    """Vote on the responses to the last message in an arena. For who began the conversation."""
    standing = standing_of(conversation)
    if standing.turn is None or standing.turn.comparison is None:
        return _screen(request, link, conversation)
    assignment = ballot_of(standing)
    assignment.comparison.project = conversation.project
    entered = Entered.from_post(request.POST, assignment)
    form = JudgmentForm(entered, request.POST, assignment=assignment)
    doubts = doubts_left(form, assignment)
    if form.is_valid() and not doubts:
        try:
            vote_on_turn(
                conversation=conversation,
                voter=conversation.annotator,
                answer=form.answer,
                idempotency_key=form.cleaned_data["idempotency_key"],
            )
        except Refusal as refusal:
            form.add_refusal(refusal)
        else:
            return HttpResponse() if request.htmx else redirect(_addresses(link, conversation).page)
    talk = Talk(standing=standing, addresses=_addresses(link, conversation))
    screen = judging_screen(talk, entered=entered, form=form, doubts=doubts)
    return show_judging(request, screen, status=422, page=_PAGE)


@require_POST
@_talk_page
def arena_talk_end(request: Request, link: ArenaLink, conversation: Conversation) -> HttpResponseBase:
    """End a conversation in an arena and see who wrote what. For who began the conversation."""
    try:
        end_conversation(conversation=conversation, actor=conversation.annotator)
    except Refusal as refusal:
        return _screen(request, link, conversation, trouble=refusal.message)
    if not request.htmx:
        return redirect(_addresses(link, conversation).page)
    conversation.refresh_from_db(fields=["ended_at"])
    return _screen(request, link, conversation)


def _addresses(link: ArenaLink, conversation: Conversation) -> Addresses:
    def address(name: str) -> str:
        return reverse(name, args=[link.slug, conversation.pk])

    return Addresses(
        page=address("arena-talk"),
        say=address("arena-talk-say"),
        write=address("arena-talk-write"),
        end=address("arena-talk-end"),
        submit=address("arena-talk-vote"),
        others=link.get_absolute_url(),
    )


def _screen(
    request: Request, link: ArenaLink, conversation: Conversation, *, trouble: str = "", text: str = ""
) -> HttpResponse:
    talk = Talk(
        standing=standing_of(conversation),
        addresses=_addresses(link, conversation),
        trouble=trouble,
        text=text,
    )
    return show_talk(request, talk, status=422 if trouble else 200, page=_PAGE)


def _with_pause(response: HttpResponse, refusal: TooFast) -> HttpResponse:
    response["Retry-After"] = str(refusal.seconds)
    return response
