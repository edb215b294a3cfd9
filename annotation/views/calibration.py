"""Calibration sessions: make one, see who has answered, reveal, and talk about the votes side by side."""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from annotation.choices import CalibrationDraw, Role
from annotation.errors import Refusal
from annotation.forms import offer
from annotation.models import CalibrationSession, Comment, Project
from annotation.models.inbox import LONGEST_COMMENT
from annotation.selectors import access
from annotation.selectors.calibration import (
    ItemPage,
    eligible_participants,
    items_of,
    progress_in,
    sessions_for,
    unanswered_by,
)
from annotation.selectors.inbox import talk_of
from annotation.services.calibration import (
    LONGEST_NAME,
    MOST_ITEMS,
    NewSession,
    close_session,
    create_session,
    delete_session,
    reveal_session,
    start_retest,
)
from annotation.services.inbox import post_talk
from annotation.views.access import Request, project_page, refusals_shown
from annotation.views.inbox import CommentForm

_IN_CURVE = 50
"""Sessions, the newest, whose α the curve has."""


class SessionForm(forms.Form):
    """A session of the comparisons in the address, or of some drawn at random."""

    name = forms.CharField(max_length=LONGEST_NAME, label=gettext_lazy("Name"))
    draw = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=MOST_ITEMS,
        initial=10,
        label=gettext_lazy("Comparisons drawn at random"),
    )
    draw_from = forms.ChoiceField(
        required=False,
        choices=CalibrationDraw.choices,
        initial=CalibrationDraw.OPEN,
        label=gettext_lazy("Drawn from"),
    )
    participants = forms.MultipleChoiceField(
        label=gettext_lazy("Participants"), widget=forms.CheckboxSelectMultiple
    )

    def __init__(self, data: Any, *, project: Project, chosen: bool) -> None:
        super().__init__(data)
        if chosen:
            del self.fields["draw"], self.fields["draw_from"]
        offer(
            self,
            "participants",
            [
                (str(user.pk), f"{user} ({user.username})" if str(user) != user.username else user.username)
                for user in eligible_participants(project)
            ],
        )

    @property
    def values(self) -> dict[str, Any]:
        """The arguments of `create_session`."""
        cleaned = self.cleaned_data
        values = {"name": cleaned["name"], "participants": [int(pk) for pk in cleaned["participants"]]}
        if "draw" in self.fields:
            values |= {
                "draw": cleaned["draw"] or 0,
                "draw_from": cleaned["draw_from"] or CalibrationDraw.OPEN,
            }
        return values


class RetestForm(forms.Form):
    """A retest of the same comparisons, or of fresh ones."""

    which = forms.ChoiceField(
        choices=[
            ("fresh", gettext_lazy("fresh comparisons, drawn at random")),
            ("same", gettext_lazy("the same comparisons")),
        ],
        initial="fresh",
        label=gettext_lazy("Retest of"),
    )
    number = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=MOST_ITEMS,
        label=gettext_lazy("Fresh comparisons"),
        help_text=gettext_lazy("Empty for as many as in this session."),
    )


@never_cache
@require_safe
@project_page(role=Role.ANNOTATOR)
def calibrations(request: Request, project: Project) -> HttpResponse:
    """List the calibration sessions, with α over time. For managers, and for members who take part."""
    sessions = list(sessions_for(project, request.user).prefetch_related("participants", "items"))
    curve = None
    if any(session.revealed_at for session in sessions):
        # NumPy is loaded when somebody opens this page, not with the web server.
        from annotation.statistics.calibration import curve_of

        curve = curve_of(project, sessions[:_IN_CURVE])
    context = {
        "project": project,
        "sessions": sessions,
        "curve": curve,
        "is_manager": access.may(request.user, project, Role.MANAGER),
    }
    return render(request, "annotation/calibration/list.html", context)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def calibration_new(request: Request, project: Project) -> HttpResponse:
    """Make a session of the comparisons in `?comparisons=`, or of some drawn at random. For managers."""
    named = request.GET.get("comparisons", "").split(",")
    chosen = [int(pk) for pk in named if pk.isdecimal() and len(pk) < 19]
    form = SessionForm(request.POST or None, project=project, chosen=bool(chosen))
    if request.method == "POST" and form.is_valid():
        try:
            made = create_session(project=project, created_by=request.user, comparisons=chosen, **form.values)
        except Refusal as refusal:
            form.add_error(refusal.field if refusal.field in form.fields else None, refusal.message)
        else:
            return _made(request, project, made)
    context = {"project": project, "form": form, "chosen": len(chosen)}
    return render(request, "annotation/calibration/new.html", context, status=422 if form.errors else 200)


@never_cache
@require_safe
@project_page(role=Role.ANNOTATOR)
def calibration(request: Request, project: Project, pk: int) -> HttpResponse:
    """Show a session: who has answered, then α and the items. For managers, and for who takes part."""
    session = _session(request, project, pk)
    progress = progress_in(session)
    context = {
        "project": project,
        "session": session,
        "is_manager": access.may(request.user, project, Role.MANAGER),
        "progress": progress,
        "unfinished": [person for person in progress if person.left],
        "mine": next((person for person in progress if person.user.pk == request.user.pk), None),
        "number": items_of(session).count(),
        "retest_form": RetestForm(),
        **(_figures(session) if session.revealed_at is not None else {}),
    }
    if session.revealed_at is None:
        context["waits"] = unanswered_by(project, request.user).filter(session=session).exists()
    return render(request, "annotation/calibration/session.html", context)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.ANNOTATOR)
def calibration_item(request: Request, project: Project, pk: int, index: int) -> HttpResponse:
    """Show the votes on one item side by side, and talk about them. For managers, and for who takes part."""
    session = _session(request, project, pk)
    if session.revealed_at is None or index > 10**6:
        raise Http404
    items = items_of(session)
    item = get_object_or_404(items.select_related("comparison__prompt"), index=index)
    item.session, item.comparison.project = session, project
    form = CommentForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            post_talk(item=item, author=request.user, text=form.cleaned_data["text"])
        except Refusal as refusal:
            form.add_error(refusal.field, refusal.message)
        else:
            return redirect(f"{request.path}#talk")
    context = {
        "project": project,
        "session": session,
        "page": ItemPage(item),
        "place": items.filter(index__lt=index).count() + 1,
        "total": items.count(),
        "previous": items.filter(index__lt=index).last(),
        "next": items.filter(index__gt=index).first(),
        "talk": talk_of(item=item, reader=request.user),
        "form": form,
        "longest": LONGEST_COMMENT,
    }
    return render(request, "annotation/calibration/item.html", context, status=422 if form.errors else 200)


@require_POST
@project_page(role=Role.MANAGER)
def calibration_reveal(request: Request, project: Project, pk: int) -> HttpResponse:
    """Show everybody's annotations to everybody. For managers."""
    session = _session(request, project, pk)
    with refusals_shown(request):
        reveal_session(session=session, revealed_by=request.user)
        messages.success(request, _("The annotations are revealed."))
    return redirect("calibration", project.slug, pk)


@require_POST
@project_page(role=Role.MANAGER)
def calibration_close(request: Request, project: Project, pk: int) -> HttpResponse:
    """End the talk of a session. For managers."""
    session = _session(request, project, pk)
    with refusals_shown(request):
        close_session(session=session, closed_by=request.user)
        messages.success(request, _("The session is closed."))
    return redirect("calibration", project.slug, pk)


@require_POST
@project_page(role=Role.MANAGER)
def calibration_retest(request: Request, project: Project, pk: int) -> HttpResponse:
    """Begin a retest of a session, of the same or of fresh comparisons. For managers."""
    session = _session(request, project, pk)
    form = RetestForm(request.POST)
    if not form.is_valid():
        messages.error(request, " ".join(str(error) for errors in form.errors.values() for error in errors))
        return redirect("calibration", project.slug, pk)
    with refusals_shown(request):
        made = start_retest(
            session=session,
            started_by=request.user,
            is_same=form.cleaned_data["which"] == "same",
            number=form.cleaned_data["number"] or 0,
        )
        return _made(request, project, made)
    return redirect("calibration", project.slug, pk)


@require_POST
@project_page(role=Role.MANAGER)
def calibration_delete(request: Request, project: Project, pk: int) -> HttpResponse:
    """Delete a session; its annotations stay. For managers."""
    delete_session(session=_session(request, project, pk), deleted_by=request.user)
    messages.success(request, _("The session is deleted. Its annotations stay."))
    return redirect("calibrations", project.slug)


def _session(request: Request, project: Project, pk: int) -> CalibrationSession:
    """Return a session that the user sees; 404 for any other."""
    bounded = pk if pk < 2**63 else 0
    session = get_object_or_404(sessions_for(project, request.user).select_related("retest_of"), pk=bounded)
    session.project = project
    return session


def _made(request: Request, project: Project, made: NewSession) -> HttpResponse:
    for why, number in made.skipped.items():
        messages.warning(request, _("%(number)d left out: %(why)s.") % {"number": number, "why": why})
    messages.success(request, _("The session begins. Participants get its comparisons first."))
    return redirect("calibration", project.slug, made.session.pk)


def _figures(session: CalibrationSession) -> Mapping[str, Any]:
    # NumPy is loaded when somebody opens this page, not with the web server.
    from annotation.statistics.calibration import results_of

    results = results_of(session)
    return {
        "alphas": results.alphas,
        "items": results.items,
        "comments": Comment.objects.filter(calibration_item__session=session).count(),
        "curve": results.curve,
    }
