"""Oneself: who one is, where one works, one's tokens."""

from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import exceptions, serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ApiView, read_body, read_object
from annotation.choices import Role, TokenScope
from annotation.models import ApiToken, User
from annotation.services.keys import change_keys, keys_of
from annotation.services.people import choose_language
from annotation.services.tokens import create_token, revoke_token


class MembershipSerializer(serializers.Serializer[Any]):
    """One's part in one project."""

    project = serializers.SlugField(source="project.slug")
    role = serializers.ChoiceField(choices=Role.choices)


class MeSerializer(serializers.Serializer[Any]):
    """Who asks."""

    username = serializers.CharField()
    name = serializers.CharField(source="__str__", help_text="As others see it.")
    is_superuser = serializers.BooleanField()
    language = serializers.CharField(help_text="Of one's pages; empty follows the browser.")
    memberships = MembershipSerializer(many=True, source="listed_memberships")


class ChangeOfMeSerializer(serializers.Serializer[Any]):
    """What one may change about oneself."""

    language = serializers.CharField(
        allow_blank=True, max_length=10, help_text="As `de`; empty for the browser's."
    )


class TokenSerializer(serializers.ModelSerializer[ApiToken]):
    """One of one's tokens, without its secret."""

    scopes = serializers.ListField(child=serializers.ChoiceField(choices=TokenScope.choices))
    is_good = serializers.SerializerMethodField(help_text="Whether it opens anything now.")

    class Meta:
        model = ApiToken
        fields: tuple[str, ...] = (
            *("id", "name", "beginning", "scopes", "is_good"),
            *("expires_at", "revoked_at", "last_used_at", "created_at"),
        )

    def get_is_good(self, token: ApiToken) -> bool:
        """At this moment."""
        return token.is_good(timezone.now())


class NewTokenSerializer(serializers.Serializer[Any]):
    """A token to be made."""

    name = serializers.CharField(max_length=100, help_text="What it is for.")
    scopes = serializers.MultipleChoiceField(choices=TokenScope.choices, allow_empty=False)
    expires_at = serializers.DateTimeField(
        required=False, allow_null=True, default=None, help_text="When it ends; null for never."
    )


class MadeTokenSerializer(TokenSerializer):
    """A token with its secret, which nothing tells again."""

    secret = serializers.CharField()

    class Meta(TokenSerializer.Meta):
        fields = (*TokenSerializer.Meta.fields, "secret")


class MeView(ApiView):
    """Who asks. For everyone."""

    @extend_schema(operation_id="me_read", tags=["account"], responses=MeSerializer)
    def get(self, request: Request) -> Response:
        """Tell who the token or the session stands for, and in which projects they take part."""
        return Response(_told(self.user))

    @extend_schema(
        operation_id="me_change", tags=["account"], request=ChangeOfMeSerializer, responses=MeSerializer
    )
    def patch(self, request: Request) -> Response:
        """Choose the language of one's pages."""
        choose_language(user=self.user, language=read_body(ChangeOfMeSerializer, request)["language"])
        return Response(_told(self.user))


class KeysView(ApiView):
    """One's keys on the labelling screen. For everyone."""

    @extend_schema(operation_id="me_keys_read", tags=["account"], responses={200: OpenApiTypes.OBJECT})
    def get(self, request: Request) -> Response:
        """Tell the key of every action."""
        return Response(keys_of(self.user))

    @extend_schema(
        operation_id="me_keys_set",
        tags=["account"],
        request=OpenApiTypes.OBJECT,
        responses={200: OpenApiTypes.OBJECT},
    )
    def put(self, request: Request) -> Response:
        """Choose the keys of actions, as `{"submit": "Enter"}`; those left out become the defaults again."""
        change_keys(user=self.user, keys=read_keys(request))
        return Response(keys_of(self.user))


class TokensView(ApiView):
    """One's tokens. For everyone."""

    # The answer to a POST holds a secret, which is kept nowhere.
    keeps_answers = False

    @extend_schema(operation_id="tokens_list", tags=["account"], responses=TokenSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List one's tokens, those that are revoked or ended among them."""
        return Response(TokenSerializer(self.user.api_tokens.all(), many=True).data)

    @extend_schema(
        operation_id="tokens_create",
        tags=["account"],
        request=NewTokenSerializer,
        responses={201: MadeTokenSerializer},
    )
    def post(self, request: Request) -> Response:
        """Make a token. Its secret is in this answer and never again. Only who is signed in with a browser
        may: a token makes no tokens."""
        require_session(request)
        told = read_body(NewTokenSerializer, request)
        made = create_token(
            user=self.user,
            name=told["name"],
            scopes=sorted(told["scopes"]),
            expires_at=told["expires_at"],
        )
        made.token.secret = made.secret  # type: ignore[attr-defined]
        return Response(MadeTokenSerializer(made.token).data, status=201)


class TokenView(ApiView):
    """One of one's tokens. For everyone."""

    # Whatever a token is for, it may give itself up.
    changes = TokenScope.READ

    @extend_schema(operation_id="tokens_revoke", tags=["account"], responses={204: None})
    def delete(self, request: Request, pk: int) -> Response:
        """Make a token worthless, for good. A token may revoke itself and no other."""
        token = self.user.api_tokens.filter(pk=pk).first()
        if token is None:
            raise exceptions.NotFound
        if isinstance(request.auth, ApiToken) and request.auth.pk != token.pk:
            require_session(request)
        revoke_token(token=token, user=self.user)
        return Response(status=204)


def read_keys(request: Request) -> dict[str, str]:
    """Actions with their keys, as they were sent. Refuses keys that are no texts."""
    sent = read_object(request)
    if wrong := [name for name, key in sent.items() if not isinstance(key, str)]:
        raise serializers.ValidationError({name: [_("A key is a text.")] for name in wrong})
    return dict(sent)


def _told(user: User) -> Any:
    user.listed_memberships = list(user.memberships.select_related("project").order_by("pk"))  # type: ignore[attr-defined]
    return MeSerializer(user).data


def require_session(request: Request) -> None:
    """Refuse a token. A stolen one must not outlive its revocation by way of others that it made, nor reach
    what is the person's alone."""
    if isinstance(request.auth, ApiToken):
        raise exceptions.PermissionDenied(_("Sign in with a browser for this: a token may not."))
