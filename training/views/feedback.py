"""Stored requests of applications, feedback on them, and their settings, for managers."""

from datetime import datetime, time, timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import BigIntegerField
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from annotation.choices import Role, TokenScope
from annotation.errors import Refusal
from annotation.forms import offer
from annotation.models import ApiToken, Project, User
from annotation.views.access import Request, project_page, refusals_shown
from training.choices import FeedbackKind, SelectionReason
from training.models import (
    ApplicationRequest,
    Feedback,
    FeedbackIncident,
    FeedbackKey,
    FeedbackSettings,
    RequestOptIn,
)
from training.selectors.feedback import (
    incidents_of,
    stored_requests,
    thumbs_by_day,
    with_counts,
    with_exclusion,
)
from training.services.feedback.abuse import decide_incident
from training.services.feedback.recording import erase_user, pseudonyms
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

# Forms of stored requests and feedback: settings, rules, keys, filters.

_LINES = {"rows": 4, "spellcheck": "false", "autocapitalize": "off"}
_TOKEN = TokenScope.GENERATE


class LinesField(forms.CharField):
    """A list of texts, one a line."""

    widget = forms.Textarea(attrs=_LINES)

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(value) if isinstance(value, list) else value

    def clean(self, value: Any) -> list[str]:
        """Return the lines that are not blank."""
        text = str(super().clean(value) or "")
        return [line.strip() for line in text.splitlines() if line.strip()]


class FeedbackSettingsForm(forms.Form):
    """Settings of applications' requests and feedback: storage, retention, origins and quotas."""

    stores_requests = forms.BooleanField(
        required=False,
        label=gettext_lazy("Store requests"),
        help_text=gettext_lazy(
            "Of the tokens below alone. Off: applications are answered, and nothing is stored."
        ),
    )
    retention_days = forms.IntegerField(
        min_value=1,
        max_value=3650,
        label=gettext_lazy("Retention (days)"),
        help_text=gettext_lazy("Older requests are deleted once a day, with their feedback."),
    )
    patterns = LinesField(
        required=False,
        max_length=30_000,
        label=gettext_lazy("Redaction patterns"),
        help_text=gettext_lazy(
            "Regular expressions, one per line. What matches is replaced before anything is stored."
        ),
    )
    origins = LinesField(
        required=False,
        max_length=10_000,
        label=gettext_lazy("Origins"),
        help_text=gettext_lazy(
            "Sites whose pages may send feedback, one per line, such as https://app.example.org"
        ),
    )
    daily_quota = forms.IntegerField(
        min_value=1, max_value=10_000_000, label=gettext_lazy("Max. feedback per token or key and day")
    )
    daily_quota_of_user = forms.IntegerField(
        min_value=1, max_value=1_000_000, label=gettext_lazy("Max. feedback per user and day")
    )

    @classmethod
    def of(cls, settings: FeedbackSettings, data: Any = None) -> "FeedbackSettingsForm":
        """Return the form with the values of `settings`."""
        return cls(data, initial={name: getattr(settings, name) for name in cls.base_fields})


class PatternTestForm(forms.Form):
    """Patterns and a text to try them on."""

    patterns = LinesField(required=False, max_length=30_000, label=gettext_lazy("Redaction patterns"))
    sample = forms.CharField(
        required=False,
        strip=False,
        max_length=5_000,
        label=gettext_lazy("Sample text"),
        help_text=gettext_lazy("Nothing of it is stored."),
        widget=forms.Textarea(attrs={"rows": 3}),
    )


class SelectionRuleForm(forms.Form):
    """One rule of the selection for annotators."""

    reason = forms.ChoiceField(choices=SelectionReason.choices)
    is_on = forms.BooleanField(required=False)
    share = forms.FloatField(min_value=0, max_value=1)
    most_per_day = forms.IntegerField(min_value=1, max_value=10_000)


class OptInForm(forms.Form):
    """One of the user's tokens that generate."""

    token = forms.ModelChoiceField(ApiToken.objects.none(), label=gettext_lazy("Token"))

    def __init__(self, *args: Any, user: User) -> None:
        super().__init__(*args)
        tokens = user.api_tokens.filter(revoked_at__isnull=True, request_opt_in__isnull=True)
        # The list of scopes is JSON, which SQLite cannot look into.
        good = [token.pk for token in tokens if _TOKEN in token.scopes and token.is_good(timezone.now())]
        offer(self, "token", tokens.filter(pk__in=good))


class KeyForm(forms.Form):
    """A publishable key."""

    name = forms.CharField(
        max_length=100,
        label=gettext_lazy("Application"),
        help_text=gettext_lazy("The page that uses it, such as “help centre”."),
    )


class EraseForm(forms.Form):
    """An end user whose requests and feedback are deleted."""

    user = forms.CharField(
        max_length=512,
        label=gettext_lazy("User id"),
        help_text=gettext_lazy("As the application sends it in “user”."),
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )


def _day(label: Any) -> forms.DateField:
    widget = forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d")
    return forms.DateField(required=False, label=label, widget=widget)


class RequestFilter(forms.Form):
    """Filters of the list of stored requests."""

    kind = forms.ChoiceField(
        required=False,
        choices=[("", gettext_lazy("any")), *FeedbackKind.choices],
        label=gettext_lazy("Feedback"),
    )
    rating = forms.ChoiceField(
        required=False,
        choices=[
            ("", gettext_lazy("any")),
            ("positive", gettext_lazy("positive")),
            ("negative", gettext_lazy("negative")),
        ],
        label=gettext_lazy("Opinion"),
    )
    source = forms.ChoiceField(required=False, label=gettext_lazy("Token or key"))
    checkpoint = forms.ChoiceField(required=False, label=gettext_lazy("Model"))
    user = forms.CharField(required=False, max_length=512, label=gettext_lazy("User id"))
    since = _day(gettext_lazy("From"))
    until = _day(gettext_lazy("To"))
    has_feedback = forms.BooleanField(required=False, label=gettext_lazy("With feedback"))
    excluded = forms.BooleanField(required=False, label=gettext_lazy("With excluded feedback"))

    def __init__(self, data: Any, *, project: Project) -> None:
        super().__init__(data)
        self._project = project
        requests = ApplicationRequest.objects.filter(project=project).order_by()
        tokens = requests.values_list("token_name", flat=True).distinct()
        keys = Feedback.objects.filter(project=project).order_by().values_list("source_name", flat=True)
        models = requests.values_list("checkpoint__name", flat=True).distinct()
        for name, values in (("source", {*tokens, *keys.distinct()}), ("checkpoint", set(models))):
            offer(self, name, [("", gettext_lazy("any")), *((value, value) for value in sorted(values))])

    def asked(self) -> dict[str, Any]:
        """Return the filters for `selectors.feedback.stored_requests`; none while a field has an error."""
        if not self.is_valid():
            return {}
        values = dict(self.cleaned_data)
        if values["since"]:
            values["since"] = _midnight(values["since"])
        if values["until"]:
            values["until"] = _midnight(values["until"] + timedelta(days=1))
        if user := values.pop("user"):
            values["pseudonyms"] = pseudonyms(self._project.pk, user)
        return values


def _midnight(day: Any) -> datetime:
    return timezone.make_aware(datetime.combine(day, time()))


# ── Feedback ──

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
    form = SelectionRuleForm(request.POST)
    with refusals_shown(request):
        if form.is_valid():
            set_rule(project=project, changed_by=request.user, **form.cleaned_data)
            messages.success(request, _("Saved."))
        else:
            messages.error(request, _("Enter a share from 0 to 1, and 1 to 10000 a day."))
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
    with refusals_shown(request):
        if form.is_valid():
            opt_in(project=project, token=form.cleaned_data["token"], opted_by=request.user)
        else:
            messages.error(request, _("Choose one of your tokens."))
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
    with refusals_shown(request):
        create_key(project=project, name=request.POST.get("name", ""), created_by=request.user)
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
