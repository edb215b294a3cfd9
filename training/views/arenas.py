"""Arenas: managers open and close them; annotators and guests vote blind behind a secret address."""

import uuid

from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import redirect_to_login
from django.db.models import Count
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from annotation.choices import Role
from annotation.errors import Refusal
from annotation.models import Project, User
from annotation.selectors import access as selectors
from annotation.selectors.access import client_address
from annotation.services.people.shortcuts import keys_of
from annotation.text.rendering import render_markdown
from annotation.views.access import Request, project_page
from training.forms.comparing import ArenaForm, VoteForm
from training.models import ArenaBallot, ArenaLink
from training.services.arenas import (
    TooFast,
    begin_as_guest,
    close_arena,
    create_arena,
    next_ballot,
    vote_in_arena,
)
from training.services.conversations import begin_in_arena
from training.views.responses import responses_on, vote_in_words

# ── The manager's side ────────────────────────────────────────────────────────────────


@require_safe
@project_page(role=Role.MANAGER)
def arenas(request: Request, project: Project) -> HttpResponse:
    """The arenas of a project and the form for a new one. For managers."""
    return _arenas(request, project, ArenaForm(project=project))


@require_POST
@project_page(role=Role.MANAGER)
def arena_create(request: Request, project: Project) -> HttpResponse:
    """Open an arena. For managers."""
    form = ArenaForm(request.POST, project=project)
    if form.is_valid():
        try:
            made = create_arena(project=project, created_by=request.user, **form.cleaned_data)
        except Refusal as refusal:
            form.add_error(refusal.field, refusal.message)
        else:
            messages.success(
                request,
                _("Arena opened.")
                if made.is_conversation
                else _("Arena opened. Responses are being generated."),
            )
            return redirect(reverse("arenas", args=[project.slug]) + f"#arena-{made.pk}")
    return _arenas(request, project, form, status=422)


@require_POST
@project_page(role=Role.MANAGER)
def arena_close(request: Request, project: Project, pk: int) -> HttpResponse:
    """End an arena's voting for good. For managers."""
    close_arena(arena=get_object_or_404(ArenaLink, pk=pk, project=project), closed_by=request.user)
    return redirect("arenas", project.slug)


def _arenas(request: Request, project: Project, form: ArenaForm, *, status: int = 200) -> HttpResponse:
    links = project.arenas.prefetch_related("checkpoints").select_related("created_by")
    links = links.annotate(conversations=Count("talks"))[:50]
    context = {
        "project": project,
        "form": form,
        "arenas": [(link, request.build_absolute_uri(link.get_absolute_url())) for link in links],
    }
    return render(request, "training/comparing/arenas.html", context, status=status)


# ── The voter's side ──────────────────────────────────────────────────────────────────


@login_not_required
@never_cache
@require_safe
def arena(request: Request, slug: str) -> HttpResponse:
    """Show the next pair, blind, or the introduction for a guest. For annotators of the project, and for
    guests where they may vote."""
    link = link_of(slug)
    voter = voter_of(request, link)
    if isinstance(voter, HttpResponse):
        return voter
    if voter is None:
        return render(
            request, "training/comparing/arena.html", {"arena": link, "begin": True}, status=_status(link)
        )
    if link.is_conversation:
        return _talk(request, link, voter)
    try:
        ballot = next_ballot(arena=link, voter=voter)
    except TooFast as refusal:
        return too_fast(request, link, refusal)
    if ballot is None:
        return render(request, "training/comparing/arena.html", {"arena": link}, status=_status(link))
    return _show(request, link, ballot)


def _talk(request: Request, link: ArenaLink, voter: User) -> HttpResponse:
    """Lead to the voter's open conversation, or to a new one."""
    try:
        return redirect("arena-talk", link.slug, begin_in_arena(arena=link, voter=voter).pk)
    except Refusal:
        return render(request, "training/comparing/arena.html", {"arena": link}, status=_status(link))


@login_not_required
@never_cache
@require_POST
def arena_begin(request: Request, slug: str) -> HttpResponse:
    """Begin as a guest. For who has the link of an arena that takes guests."""
    link = link_of(slug)
    voter = voter_of(request, link)
    if isinstance(voter, HttpResponse):
        return voter
    if voter is None:
        try:
            guest = begin_as_guest(arena=link, address=client_address(request) or "")
        except TooFast as refusal:
            return too_fast(request, link, refusal)
        except Refusal as refusal:
            messages.error(request, refusal.message)
            return redirect("arena", slug)
        request.session[_session_key(link)] = guest.pk
    return redirect("arena", slug)


@login_not_required
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def arena_ballot(request: Request, slug: str, ballot_id: uuid.UUID) -> HttpResponse:
    """One pair: vote on it; once voted, who wrote what. For who was given it."""
    link = link_of(slug)
    voter = voter_of(request, link)
    if isinstance(voter, HttpResponse):
        return voter
    ballots = ArenaBallot.objects.select_related("pair__comparison__prompt", "judgment")
    ballot = get_object_or_404(ballots, pk=ballot_id, pair__arena=link, voter=voter or 0)
    if request.method != "POST":
        return _show(request, link, ballot)
    form = VoteForm(request.POST, positions=(1, 2))
    if not form.is_valid():
        return _show(request, link, ballot, trouble=form.first_error)
    try:
        vote_in_arena(ballot=ballot, voter=ballot.voter, vote=form.decision)
    except Refusal as refusal:
        return _show(request, link, ballot, trouble=refusal.message)
    return redirect("arena-ballot", slug, ballot.pk)


def link_of(slug: str) -> ArenaLink:
    """Return the arena with this link; 404 without one."""
    return get_object_or_404(ArenaLink.objects.select_related("project"), slug=slug)


def _status(link: ArenaLink) -> int:
    return 200 if link.is_open else 410


def _session_key(link: ArenaLink) -> str:
    return f"arena-{link.pk}"


def voter_of(request: Request, link: ArenaLink) -> User | HttpResponse | None:
    """Return the voter: a member as themselves, anyone else as the guest of their session.

    None for a guest who has not begun. An arena without guests sends who is not signed in to the
    sign-in page and does not exist for outsiders.
    """
    if selectors.may(request.user, link.project, Role.ANNOTATOR):
        return request.user
    if not link.for_guests:
        if not request.user.is_authenticated:
            return redirect_to_login(request.get_full_path())
        raise Http404
    return User.objects.filter(pk=request.session.get(_session_key(link)) or 0, is_guest=True).first()


def too_fast(request: Request, link: ArenaLink, refusal: TooFast) -> HttpResponse:
    """Return 429 with the time after which it is worth asking again."""
    context = {"arena": link, "message": refusal.message}
    answer = render(request, "training/comparing/arena.html", context, status=429)
    answer["Retry-After"] = str(refusal.seconds)
    return answer


def _show(request: Request, link: ArenaLink, ballot: ArenaBallot, *, trouble: str = "") -> HttpResponse:
    prompt = ballot.pair.comparison.prompt
    responses = responses_on(ballot)
    context = {
        "arena": link,
        "ballot": ballot,
        "chat": [{**turn, "html": render_markdown(turn["content"])} for turn in prompt.messages],
        "passages": prompt.context,
        "responses": responses,
        "complete": True,
        "verdict": vote_in_words(ballot.judgment, responses),
        "trouble": trouble,
        "keys": keys_of(request.user),
    }
    return render(request, "training/comparing/shown.html", context, status=422 if trouble else 200)
