"""Authentication by token or browser session, and throttling."""

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
from annotation.services.people.accounts import TooManyRequests, use_token


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer …` with a token whose scopes cover the operation. Each use is counted."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        """Return the token's owner and the token; None without a header, so that the session is tried."""
        scheme, _space, secret = request.headers.get("Authorization", "").partition(" ")
        if not scheme:
            return None
        if scheme.lower() != "bearer":
            raise exceptions.AuthenticationFailed(_("Send 'Authorization: Bearer' with a token."))
        scope_of: Callable[[str], TokenScope] = request.parser_context["view"].scope_of
        try:
            token = use_token(secret=secret.strip(), scope=scope_of(request.method or "GET"))
        except NotAllowed as error:
            raise exceptions.PermissionDenied(error.message, code=error.code) from error
        except TooManyRequests as error:
            raise exceptions.Throttled(wait=error.seconds) from error
        if token is None:
            raise exceptions.AuthenticationFailed(_("This token is wrong, revoked or at its end."))
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # untyped there
    """The OpenAPI description of tokens."""

    target_class = TokenAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "A token made at /account/tokens/. Scopes: "
            + "; ".join(f"`{scope.value}`: {scope.name.lower()}" for scope in TokenScope)
            + ".",
        }


class PersonThrottle(SimpleRateThrottle):
    """Requests per minute of one person, by token or session, counted per web process."""

    scope = "person"

    def get_rate(self) -> str:
        """Return `RONDO_API_REQUESTS_PER_MINUTE`, read on each request."""
        return f"{settings.RONDO_API_REQUESTS_PER_MINUTE}/min"

    def get_cache_key(self, request: Request, view: APIView) -> str:
        """Return a key per person, or per address without one."""
        return f"api-requests:{request.user.pk or self.get_ident(request)}"
