"""Feedback of applications' end users: received here, from servers by token and from web pages by key."""

from collections.abc import Mapping
from typing import Any, cast

from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework import exceptions, serializers
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import SimpleRateThrottle
from rest_framework.views import APIView

from annotation.api import fields
from annotation.api.authentication import TokenAuthentication, client_address
from annotation.api.base import ApiView
from annotation.api.operations import Resource, Values
from annotation.choices import SCALE_VALUES, RatingScale, TokenScope
from annotation.models import ApiToken
from training.choices import FeedbackKind
from training.models import KEY_PREFIX, Feedback, FeedbackKey, FeedbackSettings
from training.services.feedback.recording import (
    LONGEST_KEY,
    LONGEST_USER,
    NewFeedback,
    TooMuchFeedback,
    UnknownCompletionError,
    give_feedback,
)

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
