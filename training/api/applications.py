"""Stored requests and feedback for managers: lists, figures, incidents, settings, keys, deletion."""

from typing import Any

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from annotation.api.base import Filters, ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.errors import Refusal
from annotation.models import ApiToken
from training.choices import FeedbackKind, SelectionReason
from training.models import (
    ApplicationRequest,
    Feedback,
    FeedbackIncident,
    FeedbackKey,
    FeedbackRule,
    FeedbackSettings,
    RequestOptIn,
)
from training.selectors.feedback import incidents_of, stored_requests, thumbs_by_day, with_exclusion
from training.services.feedback.abuse import decide_incident
from training.services.feedback.erasure import Erased, erase_user
from training.services.feedback.pseudonyms import pseudonyms
from training.services.feedback.redaction import Redactor, TooSlowError, checked_patterns
from training.services.feedback.settings import (
    SETTINGS,
    change_settings,
    create_key,
    opt_in,
    opt_out,
    revoke_key,
    rules_of,
    set_rule,
    settings_of,
)

_OBJECTS = {"type": "array", "items": {"type": "object", "additionalProperties": True}}


@extend_schema_field(_OBJECTS)
class ObjectsField(serializers.JSONField):
    """A list of objects as it is stored."""


class GivenSerializer(serializers.ModelSerializer[Feedback]):
    """Feedback as managers see it."""

    request = serializers.IntegerField(source="request_id")
    alternative = serializers.IntegerField(source="alternative_id", allow_null=True)
    is_excluded = serializers.BooleanField(help_text="An incident excludes it.")

    class Meta:
        model = Feedback
        fields = (
            *(
                "id",
                "request",
                "choice",
                "kind",
                "value",
                "scale",
                "text",
                "alternative",
                "alternative_choice",
            ),
            *("author", "source_name", "changes", "is_excluded", "created_at", "updated_at"),
        )


class StoredRequestSerializer(serializers.ModelSerializer[ApplicationRequest]):
    """A stored request with its completions and provenance."""

    checkpoint = serializers.CharField(source="checkpoint.name")
    messages = ObjectsField()
    choices = ObjectsField(help_text="Completions: text, seed, finish_reason, token_count.")
    reason = serializers.SerializerMethodField(
        help_text="The rule that put it before annotators; empty: none."
    )
    comparison = serializers.SerializerMethodField()

    class Meta:
        model = ApplicationRequest
        fields: tuple[str, ...] = (
            *("id", "key", "checkpoint", "token_name", "pseudonym", "messages", "choices", "sampling"),
            *("redactions", "is_streamed", "scores", "reason", "comparison", "created_at"),
        )

    def get_reason(self, row: ApplicationRequest) -> str:
        origin = getattr(row, "comparison", None)
        return origin.reason if origin else ""

    def get_comparison(self, row: ApplicationRequest) -> int | None:
        origin = getattr(row, "comparison", None)
        return origin.comparison_id if origin else None


class WholeRequestSerializer(StoredRequestSerializer):
    """A stored request with all feedback on it."""

    feedback = serializers.SerializerMethodField()

    class Meta(StoredRequestSerializer.Meta):
        fields = (*StoredRequestSerializer.Meta.fields, "feedback")

    @extend_schema_field(GivenSerializer(many=True))
    def get_feedback(self, row: ApplicationRequest) -> Any:
        return GivenSerializer(with_exclusion(row.feedback.order_by("pk")), many=True).data


class RequestFilters(Filters):
    """Filters of stored requests."""

    kind = serializers.ChoiceField(choices=FeedbackKind.choices, required=False)
    rating = serializers.ChoiceField(choices=["positive", "negative"], required=False)
    source: Any = serializers.CharField(required=False, max_length=100, help_text="Of a token or key.")
    checkpoint = serializers.CharField(required=False, max_length=100)
    user = serializers.CharField(required=False, max_length=512, help_text="As the application sends it.")
    since = serializers.DateTimeField(required=False)
    until = serializers.DateTimeField(required=False)
    has_feedback = serializers.BooleanField(required=False)
    excluded = serializers.BooleanField(required=False, help_text="With excluded feedback.")


class FeedbackFilters(Filters):
    """Filters of feedback."""

    kind = serializers.ChoiceField(choices=FeedbackKind.choices, required=False)
    source: Any = serializers.CharField(
        source="source_name", required=False, max_length=100, help_text="Of a token or key."
    )


class ThumbsSerializer(serializers.Serializer[Any]):
    """Thumbs of one day on one checkpoint's completions."""

    day = serializers.DateField()
    checkpoint = serializers.CharField()
    up = serializers.IntegerField()
    down = serializers.IntegerField()
    share = serializers.FloatField(help_text="Of thumbs up.")
    low = serializers.FloatField(help_text="Lower end of the 95 % interval.")
    high = serializers.FloatField()


class IncidentSerializer(serializers.ModelSerializer[FeedbackIncident]):
    """A pattern that looks like abuse."""

    rows = serializers.IntegerField(help_text="How much feedback it excludes.")

    class Meta:
        model = FeedbackIncident
        fields = ("id", "kind", "subject", "started_at", "ended_at", "rows", "is_included", "decided_at")


class DecisionSerializer(serializers.Serializer[Any]):
    """The decision to include the feedback of an incident."""

    is_included = serializers.BooleanField(required=False)


class RuleSerializer(serializers.ModelSerializer[FeedbackRule]):
    """A rule of the selection for annotators."""

    class Meta:
        model = FeedbackRule
        fields = ("reason", "is_on", "share", "most_per_day")


class KeySerializer(serializers.ModelSerializer[FeedbackKey]):
    """A publishable key, which is no secret."""

    class Meta:
        model = FeedbackKey
        fields = ("id", "name", "key", "created_at", "revoked_at")


class OptInSerializer(serializers.ModelSerializer[RequestOptIn]):
    """A token whose requests are stored."""

    token = serializers.IntegerField(source="token_id")
    name = serializers.CharField(source="token.name")

    class Meta:
        model = RequestOptIn
        fields = ("token", "name", "created_at")


class FeedbackSettingsSerializer(serializers.ModelSerializer[FeedbackSettings]):
    """A project's settings for requests and feedback of applications."""

    patterns = serializers.ListField(child=serializers.CharField())
    origins = serializers.ListField(child=serializers.CharField())
    rules = serializers.SerializerMethodField()
    tokens = serializers.SerializerMethodField()

    class Meta:
        model = FeedbackSettings
        fields = (*SETTINGS, "problem", "rules", "tokens")

    @extend_schema_field(RuleSerializer(many=True))
    def get_rules(self, settings: FeedbackSettings) -> Any:
        return RuleSerializer(rules_of(settings.project), many=True).data

    @extend_schema_field(OptInSerializer(many=True))
    def get_tokens(self, settings: FeedbackSettings) -> Any:
        return OptInSerializer(settings.project.request_opt_ins.select_related("token"), many=True).data


class ChangedSettingsSerializer(serializers.Serializer[Any]):
    """The settings to change."""

    stores_requests = serializers.BooleanField(required=False)
    retention_days = serializers.IntegerField(required=False, min_value=1, max_value=3650)
    patterns = serializers.ListField(
        child=serializers.CharField(max_length=500), required=False, help_text="Regular expressions."
    )
    origins = serializers.ListField(child=serializers.CharField(max_length=300), required=False)
    daily_quota = serializers.IntegerField(required=False, min_value=1, max_value=10_000_000)
    daily_quota_of_user = serializers.IntegerField(required=False, min_value=1, max_value=1_000_000)


class ChangedRuleSerializer(serializers.Serializer[Any]):
    """A rule to set."""

    reason = serializers.ChoiceField(choices=SelectionReason.choices)
    is_on = serializers.BooleanField()
    share = serializers.FloatField(min_value=0, max_value=1)
    most_per_day = serializers.IntegerField(min_value=1, max_value=10_000)


class SampleSerializer(serializers.Serializer[Any]):
    """Patterns to try on a text."""

    patterns = serializers.ListField(child=serializers.CharField(max_length=500))
    sample = serializers.CharField(max_length=5_000, allow_blank=True, trim_whitespace=False)


class RedactedSerializer(serializers.Serializer[Any]):
    """The sample as it would be stored."""

    redacted = serializers.CharField()
    redactions = serializers.IntegerField()


class NewKeySerializer(serializers.Serializer[Any]):
    """A key to create."""

    name = serializers.CharField(max_length=100)


class TokenIdSerializer(serializers.Serializer[Any]):
    """One of the user's tokens."""

    token = serializers.IntegerField(min_value=1, max_value=2**63 - 1)


class EndUserSerializer(serializers.Serializer[Any]):
    """An end user."""

    user = serializers.CharField(max_length=512, help_text="As the application sends it.")


class ErasedSerializer(serializers.Serializer[Any]):
    """Numbers of deleted records."""

    requests = serializers.IntegerField()
    feedback = serializers.IntegerField()
    comparisons = serializers.IntegerField(help_text="Not yet annotated ones.")
    remaining = serializers.IntegerField(help_text="Annotated ones, which stay.")


requests = Resource(
    ProjectView,
    f"{PROJECT}application-requests/",
    tag="feedback",
    rows=lambda view: stored_requests(view.project, {}),
)
feedback = Resource(ProjectView, f"{PROJECT}feedback/", tag="feedback")
incidents = Resource(
    ProjectView,
    f"{PROJECT}feedback/incidents/",
    tag="feedback",
    rows=lambda view: incidents_of(view.project),
)
stored_token = Resource(
    ProjectView,
    f"{PROJECT}feedback/stored-tokens/<int:pk>/",
    tag="feedback",
    find=lambda view, pk: get_object_or_404(
        view.project.request_opt_ins.select_related("project", "token"), token=pk
    ),
)
keys = Resource(
    ProjectView,
    f"{PROJECT}feedback/keys/",
    tag="feedback",
    rows=lambda view: view.project.feedback_keys.select_related("project"),
)

requests.item("<int:pk>/").add_read(
    "application_requests_read",
    WholeRequestSerializer,
    "Read a stored request with its provenance and all feedback.",
)
incidents.add_list("feedback_incidents_list", IncidentSerializer, "List the incidents, newest first.")
keys.add_list("feedback_keys_list", KeySerializer, "List the keys, newest first, revoked ones included.")


@requests.get_list(StoredRequestSerializer, filters=RequestFilters)
def application_requests_list(view: ProjectView, query: Values) -> QuerySet[ApplicationRequest]:
    """List the stored requests, newest first."""
    values = dict(query)
    if user := values.pop("user", ""):
        values["pseudonyms"] = pseudonyms(view.project.pk, user)
    return stored_requests(view.project, values)


@feedback.get_list(GivenSerializer, filters=FeedbackFilters)
def feedback_list(view: ProjectView, query: Values) -> QuerySet[Feedback]:
    """List the feedback, newest first."""
    return with_exclusion(Feedback.objects.filter(project=view.project)).filter(**query)


@feedback.get("figures/", returns=[ThumbsSerializer])
def feedback_figures(view: ProjectView) -> Any:
    """Read thumbs by day and checkpoint, newest first."""
    return thumbs_by_day(view.project)


@incidents.item("<int:pk>/").patch(takes=DecisionSerializer, returns=IncidentSerializer)
def feedback_incidents_decide(
    view: ProjectView, incident: FeedbackIncident, values: Values
) -> FeedbackIncident:
    """Include the feedback of an incident, or exclude it again."""
    if "is_included" in values:
        decide_incident(incident=incident, included=values["is_included"], decided_by=view.user)
    return incidents_of(view.project).get(pk=incident.pk)


@feedback.get("settings/", returns=FeedbackSettingsSerializer)
def feedback_settings_read(view: ProjectView) -> FeedbackSettings:
    """Read the settings with rules and tokens."""
    return settings_of(view.project)


@feedback.patch("settings/", takes=ChangedSettingsSerializer, returns=FeedbackSettingsSerializer)
def feedback_settings_change(view: ProjectView, values: Values) -> FeedbackSettings:
    """Change the settings that are sent."""
    return change_settings(project=view.project, changes=values, changed_by=view.user)


@feedback.post("patterns/", takes=SampleSerializer, returns=RedactedSerializer)
def feedback_patterns_try(view: ProjectView, values: Values) -> Values:
    """Try patterns on a sample text, of which nothing is stored."""
    redact = Redactor(checked_patterns(values["patterns"]))
    try:
        redacted = redact(values["sample"])
    except TooSlowError as error:
        raise Refusal(
            "patterns_too_slow", _("The patterns take too long on this text."), field="patterns"
        ) from error
    return {"redacted": redacted, "redactions": redact.count}


@feedback.put("rules/", takes=ChangedRuleSerializer, returns=RuleSerializer)
def feedback_rules_set(view: ProjectView, values: Values) -> FeedbackRule:
    """Set the rule of one reason."""
    return set_rule(project=view.project, changed_by=view.user, **values)


@feedback.post("stored-tokens/", takes=TokenIdSerializer, returns=OptInSerializer, status=201)
def feedback_tokens_add(view: ProjectView, values: Values) -> RequestOptIn:
    """Store the requests of one of the user's tokens."""
    token = ApiToken.objects.filter(pk=values["token"], user=view.user).first()
    if token is None:
        raise Refusal("unknown_token", _("Choose one of your tokens."), field="token")
    return opt_in(project=view.project, token=token, opted_by=view.user)


@stored_token.delete()
def feedback_tokens_remove(view: ProjectView, row: RequestOptIn) -> None:
    """Store no more requests of a token, by its id."""
    opt_out(row=row, opted_by=view.user)


@keys.post(takes=NewKeySerializer, returns=KeySerializer, status=201)
def feedback_keys_create(view: ProjectView, values: Values) -> FeedbackKey:
    """Create a key for a web page."""
    return create_key(project=view.project, name=values["name"], created_by=view.user)


@keys.item("<int:pk>/").delete()
def feedback_keys_revoke(view: ProjectView, key: FeedbackKey) -> None:
    """Revoke a key, for good."""
    revoke_key(key=key, revoked_by=view.user)


@feedback.post("erasure/", takes=EndUserSerializer, returns=ErasedSerializer)
def feedback_erase(view: ProjectView, values: Values) -> Erased:
    """Delete all requests and feedback of an end user."""
    return erase_user(project=view.project, user_id=values["user"], erased_by=view.user)
