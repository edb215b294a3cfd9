"""The user's sessions, personal data and account, in the API."""

from typing import Any

from allauth.account.decorators import reauthentication_required
from allauth.core.exceptions import ReauthenticationRequired
from allauth.usersessions.models import UserSession
from django.contrib.auth import logout
from django.http import HttpRequest, StreamingHttpResponse
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from rest_framework import exceptions, serializers
from rest_framework.request import Request

from annotation.api import fields
from annotation.api.account import require_session
from annotation.api.base import ApiView, attachment
from annotation.api.operations import Resource, Values
from annotation.errors import Refusal
from annotation.selectors.personal_data import personal_data
from webapp.security.accounts import delete_account, end_other_sessions, end_session, open_sessions


@fields.of(UserSession, "id ip user_agent created_at last_seen_at is_current")
class SessionSerializer(serializers.ModelSerializer[UserSession]):
    """A signed-in browser."""

    is_current = fields.computed("Whether this request comes from it.")

    def get_is_current(self, session: UserSession) -> bool:
        return bool(session.session_key == self.context["current"])


sessions = Resource(
    ApiView, "sessions/", tag="account", context=lambda view: {"current": _current(view.request)}
)
account = Resource(ApiView, "me/", tag="account")


class DeletionSerializer(serializers.Serializer[Any]):
    """The account to delete."""

    username = fields.text("One's own user name, so that it is no slip.", most=150)


def _require_proof(view: ApiView) -> None:
    """Require recent reauthentication: a cookie or token alone may be stolen."""
    require_session(view)
    try:
        _proven(view.request._request)
    except ReauthenticationRequired as error:
        raise exceptions.PermissionDenied(
            _("Confirm at /account/reauthenticate/ that it is you, then ask again.")
        ) from error


@reauthentication_required  # type: ignore[untyped-decorator]
def _proven(request: HttpRequest) -> None:
    """Raise `ReauthenticationRequired` if the last proof is too old."""


@sessions.get(returns=[SessionSerializer])
def sessions_list(view: ApiView) -> list[UserSession]:
    """List the user's sessions, last used first."""
    return open_sessions(user=view.user)


@sessions.delete()
def sessions_end_others(view: ApiView) -> None:
    """End all of the user's sessions except the current one; with a token, all."""
    end_other_sessions(user=view.user, current=_current(view.request))


@sessions.delete("<int:pk>/")
def sessions_end(view: ApiView, pk: int) -> None:
    """End one session of the user."""
    try:
        end_session(user=view.user, pk=pk)
    except Refusal:
        raise exceptions.NotFound from None


@account.get("data/", files={(200, "application/json"): OpenApiTypes.OBJECT}, requires=_require_proof)
def me_data(view: ApiView) -> StreamingHttpResponse:
    """Download every row about the user. Requires a browser session with recent reauthentication, not a
    token."""
    return attachment(personal_data(view.user), name="rondo-my-data.json", content_type="application/json")


# The deleted user cannot repeat the request.
@account.post("deletion/", takes=DeletionSerializer, requires=_require_proof, keeps_answers=False)
def me_delete(view: ApiView, values: Values) -> None:
    """Delete the user's account permanently; judgments stay under a pseudonym. Requires a browser session
    with recent reauthentication, not a token."""
    if values["username"] != view.user.username:
        raise Refusal("user_name_differs", _("This is not your user name."), field="username")
    delete_account(user=view.user)
    logout(view.request._request)


def _current(request: Request) -> str:
    """Return the key of the current session; empty for a token."""
    return "" if request.auth is not None else str(request.session.session_key or "")
