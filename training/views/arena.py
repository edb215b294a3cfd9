"""Arenas: managers open and close them; annotators and guests vote blindly behind a secret address."""

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import redirect_to_login
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from annotation import selectors
from annotation.choices import Role, Verdict
from annotation.errors import Refusal
from annotation.models import Completion, Project, User
from annotation.rendering import render_markdown
from annotation.views.access import Request, project_page
from training.models import ArenaBallot, ArenaLink, Checkpoint
from training.selectors import checkpoints_of
from training.services.arena import (
    BALLOTS_A_MINUTE,
    MOST_PROMPTS,
    TooFast,
    begin_as_guest,
    close_arena,
    create_arena,
    next_ballot,
    vote,
)

# ── The manager's side ────────────────────────────────────────────────────────────────


class ArenaForm(forms.Form):
    """A new arena."""

    name = forms.CharField(
        max_length=120,
        label=gettext_lazy("Name"),
        help_text=gettext_lazy("Voters read it: say nothing of the models."),
    )
    checkpoints = forms.ModelMultipleChoiceField(
        Checkpoint.objects.none(),
        to_field_name="name",
        label=gettext_lazy("Checkpoints"),
        widget=forms.CheckboxSelectMultiple,
        help_text=gettext_lazy("Two to eight. Every pair of them is voted on equally often."),
    )
    prompts = forms.IntegerField(
        initial=20,
        min_value=1,
        max_value=MOST_PROMPTS,
        label=gettext_lazy("Held-out prompts"),
        help_text=gettext_lazy("At most so many of the prompts that never train."),
    )
    temperature = forms.FloatField(initial=0.7, min_value=0, max_value=2, label=gettext_lazy("Temperature"))
    max_tokens = forms.IntegerField(
        initial=256,
        min_value=1,
        max_value=1024,
        label=gettext_lazy("Length"),
        help_text=gettext_lazy("At most this many tokens."),
    )
    for_guests = forms.BooleanField(
        required=False,
        label=gettext_lazy("Guests may vote"),
        help_text=gettext_lazy("Whoever has the link, without an account; their votes are told apart."),
    )
    most_votes = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=1_000_000,
        label=gettext_lazy("Most votes"),
        help_text=gettext_lazy("Then it ends; empty for no limit."),
    )
    expires_at = forms.DateTimeField(
        required=False,
        label=gettext_lazy("Ends at"),
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}),
        help_text=gettext_lazy("Empty for no end."),
    )

    def __init__(self, *args: Any, project: Project, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["checkpoints"]
        assert isinstance(field, forms.ModelMultipleChoiceField)  # noqa: S101 - declared above
        field.queryset = checkpoints_of(project, writing=True).order_by("-pk")


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
            messages.success(request, _("The arena is open. Its answers are being written."))
            return redirect(reverse("arenas", args=[project.slug]) + f"#arena-{made.pk}")
    return _arenas(request, project, form, status=422)


@require_POST
@project_page(role=Role.MANAGER)
def arena_close(request: Request, project: Project, pk: int) -> HttpResponse:
    """End an arena's voting for good. For managers."""
    close_arena(arena=get_object_or_404(ArenaLink, pk=pk, project=project), closed_by=request.user)
    return redirect("arenas", project.slug)


def _arenas(request: Request, project: Project, form: ArenaForm, *, status: int = 200) -> HttpResponse:
    found = project.arenas.prefetch_related("checkpoints").select_related("created_by")[:50]
    context = {
        "project": project,
        "form": form,
        "arenas": [(one, request.build_absolute_uri(one.get_absolute_url())) for one in found],
    }
    return render(request, "training/arenas.html", context, status=status)


# ── The voter's side ──────────────────────────────────────────────────────────────────


@login_not_required
@never_cache
@require_safe
def arena(request: Request, slug: str) -> HttpResponse:
    """The next pair, blind; to who has not begun, what it is about. For who has the link: annotators of
    the project, and guests where they may."""
    link = _link(slug)
    voter = _voter(request, link)
    if isinstance(voter, HttpResponse):
        return voter
    if voter is None:
        return render(request, "training/arena_begin.html", {"arena": link}, status=_status(link))
    try:
        ballot = next_ballot(arena=link, voter=voter)
    except TooFast as refusal:
        return _too_fast(request, link, refusal)
    if ballot is None:
        return render(request, "training/arena_over.html", {"arena": link}, status=_status(link))
    return _show(request, link, ballot)


@login_not_required
@never_cache
@require_POST
def arena_begin(request: Request, slug: str) -> HttpResponse:
    """Begin as a guest. For who has the link of an arena that takes guests."""
    link = _link(slug)
    voter = _voter(request, link)
    if isinstance(voter, HttpResponse):
        return voter
    if voter is None:
        try:
            guest = begin_as_guest(arena=link)
        except TooFast as refusal:
            return _too_fast(request, link, refusal)
        except Refusal as refusal:
            messages.error(request, refusal.message)
            return redirect("arena", slug)
        request.session[_session_key(link)] = guest.pk
    return redirect("arena", slug)


@login_not_required
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def arena_ballot(request: Request, slug: str, ballot_id: Any) -> HttpResponse:
    """One pair: vote on it; once voted, who wrote what. For who was given it."""
    link = _link(slug)
    voter = _voter(request, link)
    if isinstance(voter, HttpResponse):
        return voter
    ballots = ArenaBallot.objects.select_related("pair__comparison__prompt", "judgment")
    ballot = get_object_or_404(ballots, pk=ballot_id, pair__arena=link, voter=voter or 0)
    if request.method != "POST":
        return _show(request, link, ballot)
    try:
        vote(ballot=ballot, voter=ballot.voter, said=request.POST.get("vote", ""))
    except Refusal as refusal:
        return _show(request, link, ballot, trouble=refusal.message)
    return redirect("arena-ballot", slug, ballot.pk)


def _link(slug: str) -> ArenaLink:
    return get_object_or_404(ArenaLink.objects.select_related("project"), slug=slug)


def _status(link: ArenaLink) -> int:
    return 200 if link.is_open else 410


def _session_key(link: ArenaLink) -> str:
    return f"arena-{link.pk}"


def _voter(request: Request, link: ArenaLink) -> User | HttpResponse | None:
    """Who votes: a member as themselves, anyone else as the guest of their session.

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


def _too_fast(request: Request, link: ArenaLink, refusal: TooFast) -> HttpResponse:
    context = {"arena": link, "message": refusal.message, "most": BALLOTS_A_MINUTE}
    answer = render(request, "training/arena_wait.html", context, status=429)
    answer["Retry-After"] = str(refusal.seconds)
    return answer


def _show(request: Request, link: ArenaLink, ballot: ArenaBallot, *, trouble: str = "") -> HttpResponse:
    """The pair; names of models come into the context with the vote and not before."""
    judgment = ballot.judgment
    completions = Completion.objects.in_bulk(ballot.display_order)
    prompt = ballot.pair.comparison.prompt
    answers: list[dict[str, Any]] = [
        {"html": render_markdown(completions[pk].text)} for pk in ballot.display_order
    ]
    context: dict[str, Any] = {
        "arena": link,
        "ballot": ballot,
        "prompt": [(turn["role"], render_markdown(turn["content"])) for turn in prompt.messages],
        "passages": prompt.context,
        "answers": answers,
        "trouble": trouble,
    }
    if judgment is None:
        return render(request, "training/arena_ballot.html", context, status=422 if trouble else 200)
    ranks = {rank.completion_id: rank.rank for rank in judgment.ranks.all()}
    sources = dict(Completion.objects.filter(pk__in=ballot.display_order).values_list("pk", "source__name"))
    for answer, pk in zip(answers, ballot.display_order, strict=True):
        answer["name"] = sources[pk]
        answer["won"] = judgment.verdict == Verdict.RANKED and ranks.get(pk) == 1
    context["verdict"] = judgment.get_verdict_display()
    return render(request, "training/arena_ballot.html", context | {"told": True})
