"""The account of the signed-in user: profile, projects, keys and tokens."""

from typing import Any

from django.conf import settings
from django.utils import timezone
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework import exceptions, serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ApiView, read_body, read_object
from annotation.choices import Role, TokenScope
from annotation.models import ApiToken, User
from annotation.services.people.accounts import choose_language
from annotation.services.people.shortcuts import change_keys, keys_of
from annotation.services.people.tokens import create_token, revoke_token

_KEYS = {"type": "object", "additionalProperties": {"type": "string"}}


class MembershipSerializer(serializers.Serializer[Any]):
    """The user's role in one project."""

    project = serializers.SlugField(source="project.slug")
    role = serializers.ChoiceField(choices=Role.choices)


class MeSerializer(serializers.Serializer[Any]):
    """The signed-in user."""

    username = serializers.CharField()
    name = serializers.CharField(source="__str__", help_text="As others see it.")
    is_superuser = serializers.BooleanField()
    language = serializers.CharField(help_text="Of one's pages; empty follows the browser.")
    memberships = MembershipSerializer(many=True, source="listed_memberships")


class ChangeOfMeSerializer(serializers.Serializer[Any]):
    """The part of a profile that its user may change."""

    language = serializers.ChoiceField(
        choices=settings.LANGUAGES, allow_blank=True, required=False, help_text="Empty follows the browser's."
    )


class TokenSerializer(serializers.ModelSerializer[ApiToken]):
    """A token of the user, without its secret."""

    scopes = serializers.ListField(child=serializers.ChoiceField(choices=TokenScope.choices))
    is_good = serializers.SerializerMethodField(help_text="Whether it opens anything now.")

    class Meta:
        model = ApiToken
        fields: tuple[str, ...] = (
            *("id", "name", "beginning", "scopes", "is_good"),
            *("expires_at", "revoked_at", "last_used_at", "created_at"),
        )

    def get_is_good(self, token: ApiToken) -> bool:
        return token.is_good(timezone.now())


class NewTokenSerializer(serializers.Serializer[Any]):
    """A token to create."""

    name = serializers.CharField(max_length=100, help_text="What it is for.")
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=TokenScope.choices), min_length=1)
    expires_at = serializers.DateTimeField(
        required=False, allow_null=True, default=None, help_text="When it ends; null for never."
    )


class MadeTokenSerializer(TokenSerializer):
    """A token with its secret, which is shown only once."""

    secret = serializers.CharField()

    class Meta(TokenSerializer.Meta):
        fields = (*TokenSerializer.Meta.fields, "secret")


class MeView(ApiView):
    """The signed-in user. For everyone."""

    @extend_schema(operation_id="me_read", tags=["account"], responses=MeSerializer)
    def get(self, request: Request) -> Response:
        """Read the user of the token or session, with their projects."""
        return Response(_profile(self.user))

    @extend_schema(
        operation_id="me_change", tags=["account"], request=ChangeOfMeSerializer, responses=MeSerializer
    )
    def patch(self, request: Request) -> Response:
        """Change the language of the user's pages."""
        if values := read_body(ChangeOfMeSerializer, request):
            choose_language(user=self.user, **values)
        return Response(_profile(self.user))


class KeysView(ApiView):
    """The user's keys on the labelling screen. For everyone."""

    @extend_schema(operation_id="me_keys_read", tags=["account"], responses={200: _KEYS})
    def get(self, request: Request) -> Response:
        """Read the key of every action."""
        return Response(keys_of(self.user))

    @extend_schema(
        operation_id="me_keys_set",
        tags=["account"],
        request={"application/json": _KEYS},
        responses={200: _KEYS},
    )
    def put(self, request: Request) -> Response:
        """Set the keys of actions, as `{"submit": "Enter"}`; actions left out get their defaults."""
        change_keys(user=self.user, keys=read_keys(request))
        return Response(keys_of(self.user))


class TokensView(ApiView):
    """The user's tokens. For everyone."""

    # The answer to a POST holds a secret, which is not stored.
    keeps_answers = False

    @extend_schema(operation_id="tokens_list", tags=["account"], responses=TokenSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List the user's tokens, including revoked and expired ones."""
        return Response(TokenSerializer(self.user.api_tokens.all(), many=True).data)

    @extend_schema(
        operation_id="tokens_create",
        tags=["account"],
        request=NewTokenSerializer,
        responses={201: MadeTokenSerializer},
    )
    def post(self, request: Request) -> Response:
        """Create a token. Only this response holds its secret. Requires a browser session: a token cannot
        create tokens."""
        require_session(request)
        values = read_body(NewTokenSerializer, request)
        made = create_token(
            user=self.user,
            name=values["name"],
            scopes=sorted(values["scopes"]),
            expires_at=values["expires_at"],
        )
        made.token.secret = made.secret  # type: ignore[attr-defined]
        return Response(MadeTokenSerializer(made.token).data, status=201)


class TokenView(ApiView):
    """One token of the user. For everyone."""

    # Every token may revoke itself, whatever its scopes.
    changes = TokenScope.READ

    @extend_schema(operation_id="tokens_revoke", tags=["account"], responses={204: None})
    def delete(self, request: Request, pk: int) -> Response:
        """Revoke a token permanently. A token may revoke itself and no other."""
        token = self.user.api_tokens.filter(pk=pk).first()
        if token is None:
            raise exceptions.NotFound
        if isinstance(request.auth, ApiToken) and request.auth.pk != token.pk:
            require_session(request)
        revoke_token(token=token, user=self.user)
        return Response(status=204)


def read_keys(request: Request) -> dict[str, str]:
    """Return the keys of actions as sent. Refuse keys that are not strings."""
    sent = read_object(request)
    if wrong := [name for name, key in sent.items() if not isinstance(key, str)]:
        raise serializers.ValidationError({name: [_("A key is a text.")] for name in wrong})
    return dict(sent)


def _profile(user: User) -> Any:
    user.listed_memberships = list(user.memberships.select_related("project").order_by("pk"))  # type: ignore[attr-defined]
    return MeSerializer(user).data


def require_session(request: Request) -> None:
    """Refuse a token: a stolen one must not create others nor reach the user's private data."""
    if isinstance(request.auth, ApiToken):
        raise exceptions.PermissionDenied(_("Sign in with a browser for this: a token may not."))
