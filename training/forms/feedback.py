"""Forms of stored requests and feedback: settings, rules, keys, filters."""

from datetime import datetime, time, timedelta
from typing import Any

from django import forms
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from annotation.choices import TokenScope
from annotation.models import ApiToken, Project, User
from training.choices import FeedbackKind, SelectionReason
from training.models import ApplicationRequest, Feedback, FeedbackSettings
from training.services.feedback.recording import pseudonyms

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
        label=_("Store requests"),
        help_text=_("Of the tokens below alone. Off: applications are answered, and nothing is stored."),
    )
    retention_days = forms.IntegerField(
        min_value=1,
        max_value=3650,
        label=_("Retention (days)"),
        help_text=_("Older requests are deleted once a day, with their feedback."),
    )
    patterns = LinesField(
        required=False,
        max_length=30_000,
        label=_("Redaction patterns"),
        help_text=_("Regular expressions, one per line. What matches is replaced before anything is stored."),
    )
    origins = LinesField(
        required=False,
        max_length=10_000,
        label=_("Origins"),
        help_text=_("Sites whose pages may send feedback, one per line, such as https://app.example.org"),
    )
    daily_quota = forms.IntegerField(
        min_value=1, max_value=10_000_000, label=_("Max. feedback per token or key and day")
    )
    daily_quota_of_user = forms.IntegerField(
        min_value=1, max_value=1_000_000, label=_("Max. feedback per user and day")
    )

    @classmethod
    def of(cls, settings: FeedbackSettings, data: Any = None) -> "FeedbackSettingsForm":
        """Return the form with the values of `settings`."""
        return cls(data, initial={name: getattr(settings, name) for name in cls.base_fields})


class PatternTestForm(forms.Form):
    """Patterns and a text to try them on."""

    patterns = LinesField(required=False, max_length=30_000, label=_("Redaction patterns"))
    sample = forms.CharField(
        required=False,
        strip=False,
        max_length=5_000,
        label=_("Sample text"),
        help_text=_("Nothing of it is stored."),
        widget=forms.Textarea(attrs={"rows": 3}),
    )


class RuleForm(forms.Form):
    """One rule of the selection for annotators."""

    reason = forms.ChoiceField(choices=SelectionReason.choices)
    is_on = forms.BooleanField(required=False)
    share = forms.FloatField(min_value=0, max_value=1)
    most_per_day = forms.IntegerField(min_value=1, max_value=10_000)


class OptInForm(forms.Form):
    """One of the user's tokens that generate."""

    token = forms.ModelChoiceField(ApiToken.objects.none(), label=_("Token"))

    def __init__(self, *args: Any, user: User) -> None:
        super().__init__(*args)
        field = self.fields["token"]
        assert isinstance(field, forms.ModelChoiceField)  # noqa: S101 - declared above
        tokens = user.api_tokens.filter(revoked_at__isnull=True, request_opt_in__isnull=True)
        # The list of scopes is JSON, which SQLite cannot look into.
        good = [token.pk for token in tokens if _TOKEN in token.scopes and token.is_good(timezone.now())]
        field.queryset = tokens.filter(pk__in=good)


class KeyForm(forms.Form):
    """A publishable key."""

    name = forms.CharField(
        max_length=100, label=_("Application"), help_text=_("The page that uses it, such as “help centre”.")
    )


class EraseForm(forms.Form):
    """An end user whose requests and feedback are deleted."""

    user = forms.CharField(
        max_length=512,
        label=_("User id"),
        help_text=_("As the application sends it in “user”."),
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )


def _day(label: Any) -> forms.DateField:
    widget = forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d")
    return forms.DateField(required=False, label=label, widget=widget)


class RequestFilter(forms.Form):
    """Filters of the list of stored requests."""

    kind = forms.ChoiceField(
        required=False, choices=[("", _("any")), *FeedbackKind.choices], label=_("Feedback")
    )
    rating = forms.ChoiceField(
        required=False,
        choices=[("", _("any")), ("positive", _("positive")), ("negative", _("negative"))],
        label=_("Opinion"),
    )
    source = forms.ChoiceField(required=False, label=_("Token or key"))
    checkpoint = forms.ChoiceField(required=False, label=_("Model"))
    user = forms.CharField(required=False, max_length=512, label=_("User id"))
    since = _day(_("From"))
    until = _day(_("To"))
    has_feedback = forms.BooleanField(required=False, label=_("With feedback"))
    excluded = forms.BooleanField(required=False, label=_("With excluded feedback"))

    def __init__(self, data: Any, *, project: Project) -> None:
        super().__init__(data)
        self._project = project
        requests = ApplicationRequest.objects.filter(project=project).order_by()
        tokens = requests.values_list("token_name", flat=True).distinct()
        keys = Feedback.objects.filter(project=project).order_by().values_list("source_name", flat=True)
        models = requests.values_list("checkpoint__name", flat=True).distinct()
        for name, values in (("source", {*tokens, *keys.distinct()}), ("checkpoint", set(models))):
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)  # noqa: S101 - declared above
            field.choices = [("", _("any")), *((value, value) for value in sorted(values))]

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
