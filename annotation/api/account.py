"""The account of the signed-in user: profile, projects, keys and tokens."""

from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _
from rest_framework import exceptions, serializers

from annotation.api import fields
from annotation.api.base import ApiView, read_object
from annotation.api.operations import Resource, Values
from annotation.choices import Role, TokenScope
from annotation.models import ApiToken, User
from annotation.services.people.accounts import choose_language, create_token, revoke_token
from annotation.services.people.shortcuts import change_keys, keys_of

_KEYS = {"type": "object", "additionalProperties": {"type": "string"}}


class MembershipSerializer(serializers.Serializer[Any]):
    """The user's role in one project."""

    project = serializers.SlugField(source="project.slug")
    role = fields.choice(Role.choices)


class MeSerializer(serializers.Serializer[Any]):
    """The signed-in user."""

    username = fields.text()
    name = fields.text("As others see it.", source="__str__")
    is_superuser = fields.flag()
    language = fields.text("Of one's pages; empty follows the browser.")
    memberships = MembershipSerializer(many=True, source="listed_memberships")


class ChangeOfMeSerializer(serializers.Serializer[Any]):
    """The part of a profile that its user may change."""

    language = fields.choice(
        settings.LANGUAGES, "Empty follows the browser's.", allow_blank=True, required=False
    )


@fields.of(ApiToken, "id name beginning scopes is_good expires_at revoked_at last_used_at created_at")
class TokenSerializer(serializers.ModelSerializer[ApiToken]):
    """A token of the user, without its secret."""

    scopes = fields.several(fields.choice(TokenScope.choices))
    is_good = fields.computed("Whether it opens anything now.")

    def get_is_good(self, token: ApiToken) -> bool:
        return token.is_good(timezone.now())


class NewTokenSerializer(serializers.Serializer[Any]):
    """A token to create."""

    name = fields.text("What it is for.", most=100)
    scopes = fields.several(fields.choice(TokenScope.choices), least=1)
    expires_at = fields.time("When it ends; null for never.", allow_null=True, default=None)


@fields.more("secret")
class MadeTokenSerializer(TokenSerializer):
    """A token with its secret, which is shown only once."""

    secret = fields.text()


me = Resource(ApiView, "me/", tag="account")
tokens = Resource(ApiView, "tokens/", tag="account")
token = tokens.item("<int:pk>/", rows=lambda view: view.user.api_tokens.all())


@me.get(returns=MeSerializer)
def me_read(view: ApiView) -> User:
    """Read the user of the token or session, with their projects."""
    memberships = view.user.memberships.select_related("project").order_by("pk")
    view.user.listed_memberships = list(memberships)  # type: ignore[attr-defined]
    return view.user


@me.patch(takes=ChangeOfMeSerializer, returns=MeSerializer)
def me_change(view: ApiView, values: Values) -> User:
    """Change the language of the user's pages."""
    if values:
        choose_language(user=view.user, **values)
    return me_read(view)


@me.get("keys/", schema={"responses": {200: _KEYS}})
def me_keys_read(view: ApiView) -> dict[str, str]:
    """Read the key of every action."""
    return keys_of(view.user)


@me.put("keys/", schema={"request": {"application/json": _KEYS}, "responses": {200: _KEYS}})
def me_keys_set(view: ApiView) -> dict[str, str]:
    """Set the keys of actions, as `{"submit": "Enter"}`; actions left out get their defaults."""
    sent = read_object(view.request)
    if wrong := [name for name, key in sent.items() if not isinstance(key, str)]:
        raise serializers.ValidationError({name: [_("A key is a text.")] for name in wrong})
    change_keys(user=view.user, keys=dict(sent))
    return keys_of(view.user)


@tokens.get(returns=[TokenSerializer])
def tokens_list(view: ApiView) -> QuerySet[ApiToken]:
    """List the user's tokens, including revoked and expired ones."""
    return view.user.api_tokens.all()


def require_session(view: ApiView) -> None:
    """Refuse a token: a stolen one must not create others nor reach the user's private data."""
    if isinstance(view.request.auth, ApiToken):
        raise exceptions.PermissionDenied(_("Sign in with a browser for this: a token may not."))


# A response with a secret is not stored.
@tokens.post(
    takes=NewTokenSerializer,
    returns=MadeTokenSerializer,
    status=201,
    keeps_answers=False,
    requires=require_session,
)
def tokens_create(view: ApiView, values: Values) -> ApiToken:
    """Create a token. Only this response holds its secret. Requires a browser session: a token cannot
    create tokens."""
    made = create_token(user=view.user, **{**values, "scopes": sorted(values["scopes"])})
    made.token.secret = made.secret  # type: ignore[attr-defined]
    return made.token


# Every token may revoke itself, whatever its scopes.
@token.delete(scope=TokenScope.READ)
def tokens_revoke(view: ApiView, token: ApiToken) -> None:
    """Revoke a token permanently. A token may revoke itself and no other."""
    if isinstance(view.request.auth, ApiToken) and view.request.auth.pk != token.pk:
        require_session(view)
    revoke_token(token=token, user=view.user)
