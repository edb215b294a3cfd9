"""Stored requests of applications, feedback on them, and their settings, for managers."""

from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import BigIntegerField
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from annotation.choices import Role
from annotation.errors import Refusal
from annotation.models import Project
from annotation.views.access import Request, project_page
from training.forms.feedback import (
    EraseForm,
    FeedbackSettingsForm,
    KeyForm,
    OptInForm,
    PatternTestForm,
    RequestFilter,
    RuleForm,
)
from training.models import ApplicationRequest, FeedbackIncident, FeedbackKey, RequestOptIn
from training.selectors.feedback import (
    incidents_of,
    stored_requests,
    thumbs_by_day,
    with_counts,
    with_exclusion,
)
from training.services.feedback.abuse import decide_incident
from training.services.feedback.recording import erase_user
from training.services.feedback.settings import (
    Redactor,
    TooSlowError,
    change_settings,
    checked_patterns,
    create_key,
    opt_in,
    opt_out,
    revoke_key,
    rules_of,
    set_rule,
    settings_of,
)

_PER_PAGE = 50


@require_safe
@project_page(role=Role.MANAGER)
def feedback(request: Request, project: Project) -> HttpResponse:
    """The stored requests with their feedback, newest first. For managers."""
    form = RequestFilter(request.GET, project=project)
    rows = stored_requests(project, form.asked())
    page = Paginator(rows, _PER_PAGE).get_page(request.GET.get("page"))
    counted = {row.pk: row for row in with_counts(rows.filter(pk__in=[row.pk for row in page]))}
    query = request.GET.copy()
    query.pop("page", None)
    context = {
        "project": project,
        "form": form,
        "page": page,
        "rows": [counted[row.pk] for row in page],
        "asked": query.urlencode(),
        "stores": settings_of(project).stores_requests,
    }
    return render(request, "training/feedback/requests.html", context)


@require_safe
@project_page(role=Role.MANAGER)
def feedback_request(request: Request, project: Project, pk: int) -> HttpResponse:
    """One stored conversation with its provenance and all feedback on it. For managers."""
    stored = get_object_or_404(
        ApplicationRequest.objects.select_related("checkpoint", "comparison"),
        pk=_pk(pk),
        project=project,
    )
    rows = with_exclusion(stored.feedback.select_related("alternative").order_by("pk"))
    context = {"project": project, "stored": stored, "feedback": rows}
    return render(request, "training/feedback/request.html", context)


@require_safe
@project_page(role=Role.MANAGER)
def figures(request: Request, project: Project) -> HttpResponse:
    """Thumbs by day and model, with intervals. For managers."""
    # NumPy is loaded when somebody opens this page, not with the web server.
    from annotation.statistics.plots import SHARE

    rows = [
        (figure, SHARE.interval(figure.share, figure.low, figure.high)) for figure in thumbs_by_day(project)
    ]
    return render(request, "training/feedback/figures.html", {"project": project, "rows": rows})


@require_safe
@project_page(role=Role.MANAGER)
def incidents(request: Request, project: Project) -> HttpResponse:
    """Patterns in feedback that look like abuse. For managers."""
    page = Paginator(incidents_of(project).select_related("decided_by"), _PER_PAGE)
    context = {"project": project, "page": page.get_page(request.GET.get("page"))}
    return render(request, "training/feedback/incidents.html", context)


@require_POST
@project_page(role=Role.MANAGER)
def incident(request: Request, project: Project, pk: int) -> HttpResponse:
    """Include the feedback of an incident, or exclude it again. For managers."""
    incident = get_object_or_404(
        FeedbackIncident.objects.select_related("project"), pk=_pk(pk), project=project
    )
    decide_incident(incident=incident, included="include" in request.POST, decided_by=request.user)
    return redirect("feedback-incidents", project.slug)


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def settings(request: Request, project: Project) -> HttpResponse:
    """Show and change what is stored, for how long, and who may give feedback. For managers."""
    form = FeedbackSettingsForm.of(settings_of(project), request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            change_settings(project=project, changes=form.cleaned_data, changed_by=request.user)
        except Refusal as refusal:
            form.add_error(refusal.field, refusal.message)
        else:
            messages.success(request, _("Saved."))
            return redirect("feedback-settings", project.slug)
    return _settings(request, project, form=form)


@require_POST
@project_page(role=Role.MANAGER)
def pattern_test(request: Request, project: Project) -> HttpResponse:
    """Try patterns on a sample text, of which nothing is stored. For managers."""
    form = PatternTestForm(request.POST)
    redacted, problem = "", ""
    if form.is_valid():
        try:
            redactor = Redactor(checked_patterns(form.cleaned_data["patterns"]))
            redacted = redactor(form.cleaned_data["sample"])
        except Refusal as refusal:
            problem = refusal.message
        except TooSlowError:
            problem = _("The patterns take too long on this text: nothing of it would be stored.")
    else:
        problem = _("Enter at most 5000 characters.")
    result = {"tried": True, "redacted": redacted, "problem": problem}
    if request.htmx:
        return render(request, "training/feedback/pattern_result.html", result)
    values = FeedbackSettingsForm.of(settings_of(project))
    values.initial["patterns"] = request.POST.get("patterns", "")
    return _settings(request, project, form=values, sample=form, **result)


@require_POST
@project_page(role=Role.MANAGER)
def rule(request: Request, project: Project) -> HttpResponse:
    """Switch a rule on or off, and set its share and bound. For managers."""
    form = RuleForm(request.POST)
    try:
        if form.is_valid():
            set_rule(project=project, changed_by=request.user, **form.cleaned_data)
            messages.success(request, _("Saved."))
        else:
            messages.error(request, _("Enter a share from 0 to 1, and 1 to 10000 a day."))
    except Refusal as refusal:
        messages.error(request, refusal.message)
    return redirect("feedback-settings", project.slug)


@require_POST
@project_page(role=Role.MANAGER)
def token(request: Request, project: Project) -> HttpResponse:
    """Store the requests of one of the user's tokens, or no more of them. For managers."""
    if removed := request.POST.get("remove", ""):
        row = RequestOptIn.objects.filter(project=project, pk=removed if removed.isdecimal() else 0).first()
        if row is not None:
            opt_out(row=row, opted_by=request.user)
        return redirect("feedback-settings", project.slug)
    form = OptInForm(request.POST, user=request.user)
    try:
        if form.is_valid():
            opt_in(project=project, token=form.cleaned_data["token"], opted_by=request.user)
        else:
            messages.error(request, _("Choose one of your tokens."))
    except Refusal as refusal:
        messages.error(request, refusal.message)
    return redirect("feedback-settings", project.slug)


@require_POST
@project_page(role=Role.MANAGER)
def key(request: Request, project: Project) -> HttpResponse:
    """Create a publishable key, or revoke one. For managers."""
    if revoked := request.POST.get("revoke", ""):
        key = FeedbackKey.objects.filter(project=project, pk=revoked if revoked.isdecimal() else 0).first()
        if key is not None:
            revoke_key(key=key, revoked_by=request.user)
        return redirect("feedback-settings", project.slug)
    try:
        create_key(project=project, name=request.POST.get("name", ""), created_by=request.user)
    except Refusal as refusal:
        messages.error(request, refusal.message)
    return redirect("feedback-settings", project.slug)


@require_POST
@project_page(role=Role.MANAGER)
def erase(request: Request, project: Project) -> HttpResponse:
    """Delete all requests and all feedback of one end user. For managers."""
    try:
        erased = erase_user(
            project=project, user_id=request.POST.get("user", "").replace("\x00", ""), erased_by=request.user
        )
    except Refusal as refusal:
        messages.error(request, refusal.message)
        return redirect("feedback-settings", project.slug)
    message = ngettext(
        "%(requests)d request and %(feedback)d feedback deleted.",
        "%(requests)d requests and %(feedback)d feedback deleted.",
        erased.requests,
    ) % {"requests": erased.requests, "feedback": erased.feedback}
    messages.success(request, message)
    if erased.remaining:
        remaining = ngettext(
            "%(number)d prompt stays, because annotators have annotated it.",
            "%(number)d prompts stay, because annotators have annotated them.",
            erased.remaining,
        ) % {"number": erased.remaining}
        messages.warning(request, remaining)
    return redirect("feedback-settings", project.slug)


def _settings(request: Request, project: Project, **context: Any) -> HttpResponse:
    form: FeedbackSettingsForm = context["form"]
    page = {
        "project": project,
        "settings": settings_of(project),
        "sample": PatternTestForm(),
        "rules": rules_of(project),
        "opted": project.request_opt_ins.select_related("token__user"),
        "opt_in": OptInForm(user=request.user),
        "keys": project.feedback_keys.filter(revoked_at__isnull=True),
        "key_form": KeyForm(),
        "erase_form": EraseForm(),
        "script": request.build_absolute_uri("/static/js/feedback.js"),
        "address": request.build_absolute_uri("/"),
        **context,
    }
    return render(request, "training/feedback/settings.html", page, status=422 if form.errors else 200)


def _pk(pk: int) -> int:
    """Return the primary key of an address; 404 for one that no database holds."""
    if pk > BigIntegerField.MAX_BIGINT:
        raise Http404
    return pk
