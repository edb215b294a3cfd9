"""Who asks: the holder of a token, or who is signed in with a browser."""

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle
from rest_framework.views import APIView

from annotation.choices import TokenScope
from annotation.errors import NotAllowed
from annotation.models import ApiToken, User
from annotation.services.tokens import TooManyRequests, use_token


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer …` with a token whose scopes cover the operation. Each use is counted."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        """The token with its owner; None where none was sent, so that the session is looked at."""
        scheme, _space, secret = request.headers.get("Authorization", "").partition(" ")
        if not scheme:
            return None
        if scheme.lower() != "bearer":
            raise exceptions.AuthenticationFailed(_("Send 'Authorization: Bearer' with a token."))
        scope_of: Callable[[str], TokenScope] = request.parser_context["view"].scope_of
        try:
            token = use_token(secret=secret.strip(), scope=scope_of(request.method or "GET"))
        except NotAllowed as error:
            raise exceptions.PermissionDenied(error.message) from error
        except TooManyRequests as error:
            raise exceptions.Throttled(wait=error.seconds) from error
        if token is None:
            raise exceptions.AuthenticationFailed(_("This token is wrong, revoked or at its end."))
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        """What to send, for who sent nothing."""
        return "Bearer"


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # untyped there
    """How the OpenAPI document describes tokens."""

    target_class = TokenAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        """As OpenAPI writes it."""
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "A token made at /account/tokens/. Scopes: "
            + "; ".join(f"`{scope.value}`: {scope.name.lower()}" for scope in TokenScope)
            + ".",
        }


class PersonThrottle(SimpleRateThrottle):
    """So many requests a minute of one person, whatever they sign in with, to one web process."""

    scope = "person"

    def get_rate(self) -> str:
        """`RONDO_API_REQUESTS_PER_MINUTE`, read anew with each request."""
        return f"{settings.RONDO_API_REQUESTS_PER_MINUTE}/min"

    def get_cache_key(self, request: Request, view: APIView) -> str:
        """By person; who is not signed in gets no further than here anyway, and counts by address."""
        return f"api-requests:{request.user.pk or self.get_ident(request)}"
