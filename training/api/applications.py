"""Stored requests and feedback for managers: lists, figures, incidents, settings, keys, deletion."""

from collections.abc import Mapping
from typing import Any, cast

from django.contrib.auth.models import AnonymousUser
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.utils import extend_schema_field
from rest_framework import exceptions, serializers
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import SimpleRateThrottle
from rest_framework.views import APIView

from annotation.api import fields
from annotation.api.authentication import TokenAuthentication
from annotation.api.base import ApiView, Filters, ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.choices import SCALE_VALUES, RatingScale, TokenScope
from annotation.errors import Refusal
from annotation.models import ApiToken
from annotation.selectors.access import client_address
from training.choices import FeedbackKind, SelectionReason
from training.models import (
    KEY_PREFIX,
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
from training.services.feedback.recording import (
    LONGEST_KEY,
    LONGEST_USER,
    Erased,
    NewFeedback,
    TooMuchFeedback,
    UnknownCompletionError,
    erase_user,
    give_feedback,
    pseudonyms,
)
from training.services.feedback.settings import (
    SETTINGS,
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

_OBJECTS = {"type": "array", "items": {"type": "object", "additionalProperties": True}}


@extend_schema_field(_OBJECTS)
class ObjectsField(serializers.JSONField):
    """A list of objects as it is stored."""


@fields.of(
    Feedback,
    "id request choice kind value scale text alternative alternative_choice author source_name",
    "changes is_excluded created_at updated_at",
)
class GivenSerializer(serializers.ModelSerializer[Feedback]):
    """Feedback as managers see it."""

    request = fields.integer(source="request_id")
    alternative = fields.integer(source="alternative_id", allow_null=True)
    is_excluded = fields.flag("An incident excludes it.")


@fields.of(
    ApplicationRequest,
    "id key checkpoint token_name pseudonym messages choices sampling redactions is_streamed scores",
    "reason comparison created_at",
)
class StoredRequestSerializer(serializers.ModelSerializer[ApplicationRequest]):
    """A stored request with its completions and provenance."""

    checkpoint = fields.text(source="checkpoint.name")
    messages = ObjectsField()
    choices = ObjectsField(help_text="Completions: text, seed, finish_reason, token_count.")
    reason = fields.computed("The rule that put it before annotators; empty: none.")
    comparison = fields.computed()

    def get_reason(self, row: ApplicationRequest) -> str:
        origin = getattr(row, "comparison", None)
        return origin.reason if origin else ""

    def get_comparison(self, row: ApplicationRequest) -> int | None:
        origin = getattr(row, "comparison", None)
        return origin.comparison_id if origin else None


@fields.more("feedback")
class WholeRequestSerializer(StoredRequestSerializer):
    """A stored request with all feedback on it."""

    feedback = fields.computed()

    @extend_schema_field(GivenSerializer(many=True))
    def get_feedback(self, row: ApplicationRequest) -> Any:
        return GivenSerializer(with_exclusion(row.feedback.order_by("pk")), many=True).data


class RequestFilters(Filters):
    """Filters of stored requests."""

    kind = fields.choice(FeedbackKind.choices, required=False)
    rating = fields.choice(["positive", "negative"], required=False)
    source: Any = fields.text("Of a token or key.", required=False, most=100)
    checkpoint = fields.text(required=False, most=100)
    user = fields.text("As the application sends it.", required=False, most=512)
    since = fields.time(required=False)
    until = fields.time(required=False)
    has_feedback = fields.flag(required=False)
    excluded = fields.flag("With excluded feedback.", required=False)


class FeedbackFilters(Filters):
    """Filters of feedback."""

    kind = fields.choice(FeedbackKind.choices, required=False)
    source: Any = fields.text("Of a token or key.", source="source_name", required=False, most=100)


class ThumbsSerializer(serializers.Serializer[Any]):
    """Thumbs of one day on one checkpoint's completions."""

    day = serializers.DateField()
    checkpoint = fields.text()
    up = fields.integer()
    down = fields.integer()
    share = fields.number("Of thumbs up.")
    low = fields.number("Lower end of the 95 % interval.")
    high = fields.number()


@fields.of(FeedbackIncident, "id kind subject started_at ended_at rows is_included decided_at")
class IncidentSerializer(serializers.ModelSerializer[FeedbackIncident]):
    """A pattern that looks like abuse."""

    rows = fields.integer("How much feedback it excludes.")


class DecisionSerializer(serializers.Serializer[Any]):
    """The decision to include the feedback of an incident."""

    is_included = fields.flag(required=False)


@fields.of(FeedbackRule, "reason is_on share most_per_day")
class RuleSerializer(serializers.ModelSerializer[FeedbackRule]):
    """A rule of the selection for annotators."""


@fields.of(FeedbackKey, "id name key created_at revoked_at")
class KeySerializer(serializers.ModelSerializer[FeedbackKey]):
    """A publishable key, which is no secret."""


@fields.of(RequestOptIn, "token name created_at")
class OptInSerializer(serializers.ModelSerializer[RequestOptIn]):
    """A token whose requests are stored."""

    token = fields.integer(source="token_id")
    name = fields.text(source="token.name")


@fields.of(FeedbackSettings, *SETTINGS, "problem rules tokens")
class FeedbackSettingsSerializer(serializers.ModelSerializer[FeedbackSettings]):
    """A project's settings for requests and feedback of applications."""

    patterns = fields.several(fields.text())
    origins = fields.several(fields.text())
    rules = fields.computed()
    tokens = fields.computed()

    @extend_schema_field(RuleSerializer(many=True))
    def get_rules(self, settings: FeedbackSettings) -> Any:
        return RuleSerializer(rules_of(settings.project), many=True).data

    @extend_schema_field(OptInSerializer(many=True))
    def get_tokens(self, settings: FeedbackSettings) -> Any:
        return OptInSerializer(settings.project.request_opt_ins.select_related("token"), many=True).data


class ChangedSettingsSerializer(serializers.Serializer[Any]):
    """The settings to change."""

    stores_requests = fields.flag(required=False)
    retention_days = fields.integer(required=False, least=1, most=3650)
    patterns = fields.several(fields.text(most=500), "Regular expressions.", required=False)
    origins = fields.several(fields.text(most=300), required=False)
    daily_quota = fields.integer(required=False, least=1, most=10_000_000)
    daily_quota_of_user = fields.integer(required=False, least=1, most=1_000_000)


class ChangedRuleSerializer(serializers.Serializer[Any]):
    """A rule to set."""

    reason = fields.choice(SelectionReason.choices)
    is_on = fields.flag()
    share = fields.number(least=0, most=1)
    most_per_day = fields.integer(least=1, most=10_000)


class SampleSerializer(serializers.Serializer[Any]):
    """Patterns to try on a text."""

    patterns = fields.several(fields.text(most=500))
    sample = fields.text(most=5_000, allow_blank=True, trim_whitespace=False)


class RedactedSerializer(serializers.Serializer[Any]):
    """The sample as it would be stored."""

    redacted = fields.text()
    redactions = fields.integer()


class NewKeySerializer(serializers.Serializer[Any]):
    """A key to create."""

    name = fields.text(most=100)


class TokenIdSerializer(serializers.Serializer[Any]):
    """One of the user's tokens."""

    token = fields.key()


class EndUserSerializer(serializers.Serializer[Any]):
    """An end user."""

    user = fields.text("As the application sends it.", most=512)


class ErasedSerializer(serializers.Serializer[Any]):
    """Numbers of deleted records."""

    requests = fields.integer()
    feedback = fields.integer()
    comparisons = fields.integer("Not yet annotated ones.")
    remaining = fields.integer("Annotated ones, which stay.")


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


# Feedback of applications' end users: received here, from servers by token and from web pages by key.

LONGEST_REWRITE = 100_000
REQUESTS_PER_MINUTE = 120
"""From one address, by publishable keys: repetitions and refusals included."""
PREFLIGHT_SECONDS = 86_400


class KeyAuthentication(BaseAuthentication):
    """A publishable key as the bearer. Its request has no user: it may give feedback and do nothing else."""

    def authenticate(self, request: Request) -> tuple[AnonymousUser, FeedbackKey] | None:
        """Return the key; None for another kind of secret. Refuses a page of an origin that is not set up."""
        scheme, _space, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secret.strip().startswith(KEY_PREFIX):
            return None
        key = (
            FeedbackKey.objects.filter(key=secret.strip(), revoked_at__isnull=True)
            .select_related("project__feedback_settings")
            .first()
        )
        if key is None:
            raise exceptions.AuthenticationFailed(_("This key is wrong or revoked."))
        settings: FeedbackSettings | None = getattr(key.project, "feedback_settings", None)
        if settings is None or request.headers.get("Origin", "").lower() not in settings.origins:
            raise exceptions.PermissionDenied(_("Pages of this origin may not give feedback with this key."))
        return AnonymousUser(), key

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # untyped there
    """The OpenAPI description of publishable keys."""

    target_class = KeyAuthentication
    name = "publishable-key"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "A publishable key of a project, for web pages: it gives feedback alone.",
        }


class HasCredential(BasePermission):
    """A token or a publishable key came with the request; a browser's session is not enough."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        return request.auth is not None


class AddressThrottle(SimpleRateThrottle):
    """Requests with publishable keys per address and minute, counted per web process."""

    scope = "feedback"

    def get_rate(self) -> str:
        return f"{REQUESTS_PER_MINUTE}/min"

    def get_cache_key(self, request: Request, view: APIView) -> str | None:
        """Return a key per address; None for tokens, which are counted as such."""
        if not isinstance(request.auth, FeedbackKey):
            return None
        return f"feedback-requests:{_address_of(request)}"


class NewFeedbackSerializer(serializers.Serializer[Any]):
    """Feedback on one completion: one of thumb, rating, rewrite and alternative."""

    completion = fields.text("The `id` of the answer of /v1/.", most=LONGEST_KEY)
    choice = fields.integer("Its `index`, where `n` was above 1.", default=0, least=0, most=127)
    user = fields.text(
        "A pseudonym of the end user; stored as a keyed hash. Required with a publishable key.",
        default="",
        most=LONGEST_USER,
    )
    thumb = fields.choice(["up", "down"], required=False)
    rating = fields.integer(required=False, least=1, most=7)
    scale = fields.choice(
        [RatingScale.FIVE.value, RatingScale.SEVEN.value],
        "Of the rating: 1 to 5, or 1 to 7.",
        default=RatingScale.FIVE.value,
    )
    rewrite = fields.text(
        "The response as it should be.", required=False, most=LONGEST_REWRITE, trim_whitespace=False
    )
    alternative = fields.text("Id of the answer that was chosen instead.", required=False, most=LONGEST_KEY)
    alternative_choice = fields.integer(default=0, least=0, most=127)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Require exactly one kind of feedback, and a rating on its scale."""
        if sum(kind in attrs for kind in FeedbackKind.values) != 1:
            raise serializers.ValidationError(
                {"thumb": [_("Send one of thumb, rating, rewrite and alternative.")]}
            )
        if "rating" in attrs and attrs["rating"] not in SCALE_VALUES[RatingScale(attrs["scale"])]:
            raise serializers.ValidationError({"rating": [_("The rating is not on its scale.")]})
        return attrs


@fields.of(Feedback, "id completion choice kind value scale changes created_at")
class GivenFeedbackSerializer(serializers.ModelSerializer[Feedback]):
    """Stored feedback, without its end user."""

    completion = fields.text(source="request.key")


class GiveFeedbackView(ApiView):
    """Feedback on completions of /v1/. For who holds a token of the scope `feedback`, or a publishable key.

    A web page asks from another origin: preflight requests of the origins that projects list are answered.
    """

    changes = TokenScope.FEEDBACK
    authentication_classes: Any = (KeyAuthentication, TokenAuthentication)
    permission_classes: Any = (HasCredential,)
    throttle_classes: Any = (*ApiView.throttle_classes, AddressThrottle)

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Answer, with the headers that let the page of a listed origin read it."""
        origin = request.headers.get("Origin", "").lower()
        answer = (
            HttpResponse(status=204)
            if request.method == "OPTIONS"
            else super().dispatch(request, *args, **kwargs)
        )
        patch_vary_headers(answer, ["Origin"])
        if origin and _is_listed(origin):
            answer["Access-Control-Allow-Origin"] = origin
            answer["Access-Control-Expose-Headers"] = "Retry-After"
            if request.method == "OPTIONS":
                answer["Access-Control-Allow-Methods"] = "POST"
                answer["Access-Control-Allow-Headers"] = "Authorization, Content-Type, Idempotency-Key"
                answer["Access-Control-Max-Age"] = str(PREFLIGHT_SECONDS)
        return answer


completions = Resource(GiveFeedbackView, "feedback/", tag="feedback")


# The same feedback twice is stored once by itself, also where no account stands behind the request.
@completions.post(
    takes=NewFeedbackSerializer,
    keeps_answers=False,
    schema={"responses": {200: GivenFeedbackSerializer, 201: GivenFeedbackSerializer}},
)
def feedback_give(view: GiveFeedbackView, values: Values) -> Response:
    """Give feedback on a completion. Given again by the same user it replaces the former."""
    try:
        source = cast(ApiToken | FeedbackKey, view.request.auth)
        row, created = give_feedback(
            source=source, new=_new_feedback(values), address=_address_of(view.request)
        )
    except UnknownCompletionError as error:
        raise exceptions.NotFound(_("No completion of this id is stored.")) from error
    except TooMuchFeedback as error:
        raise exceptions.Throttled(detail=error.message, wait=error.seconds) from error
    return Response(GivenFeedbackSerializer(row).data, status=201 if created else 200)


def _new_feedback(values: Mapping[str, Any]) -> NewFeedback:
    kind = next(FeedbackKind(kind) for kind in FeedbackKind.values if kind in values)
    value = values["thumb"] == "up" if kind == FeedbackKind.THUMB else values.get("rating")
    return NewFeedback(
        completion=values["completion"],
        choice=values["choice"],
        kind=kind,
        value=None if value is None else int(value),
        scale=values["scale"],
        text=values.get("rewrite", ""),
        alternative=values.get("alternative", ""),
        alternative_choice=values["alternative_choice"],
        user=values["user"],
    )


def _address_of(request: Request) -> str:
    # Reads the headers alone, which the framework's request passes through.
    return client_address(cast(HttpRequest, request)) or ""


def _is_listed(origin: str) -> bool:
    # Few projects list origins. Their JSON is read here: not every database can look into a list.
    lists = FeedbackSettings.objects.exclude(origins=[]).values_list("origins", flat=True)
    return any(origin in origins for origins in lists)
