"""The user's sessions, personal data and account, in the API."""

from typing import Any

from allauth.account.decorators import reauthentication_required
from allauth.core.exceptions import ReauthenticationRequired
from allauth.usersessions.models import UserSession
from django.contrib.auth import logout
from django.http import HttpRequest, StreamingHttpResponse
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import exceptions, serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.account import require_session
from annotation.api.base import ApiView, read_body
from annotation.api.downloads import FileView, attachment
from annotation.errors import Refusal
from annotation.selectors.personal_data import personal_data
from webapp.security.accounts import delete_account, end_other_sessions, end_session, open_sessions


class SessionSerializer(serializers.ModelSerializer[UserSession]):
    """A signed-in browser."""

    is_current = serializers.SerializerMethodField(help_text="Whether this request comes from it.")

    class Meta:
        model = UserSession
        fields = ("id", "ip", "user_agent", "created_at", "last_seen_at", "is_current")

    def get_is_current(self, session: UserSession) -> bool:
        return bool(session.session_key == self.context["current"])


class SessionsView(ApiView):
    """The user's sessions. For everyone."""

    @extend_schema(operation_id="sessions_list", tags=["account"], responses=SessionSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List the user's sessions, last used first."""
        rows = open_sessions(user=self.user)
        return Response(SessionSerializer(rows, many=True, context={"current": _current(request)}).data)

    @extend_schema(operation_id="sessions_end_others", tags=["account"], responses={204: None})
    def delete(self, request: Request) -> Response:
        """End all of the user's sessions except the current one; with a token, all."""
        end_other_sessions(user=self.user, current=_current(request))
        return Response(status=204)


class SessionView(ApiView):
    """One session of the user. For everyone."""

    @extend_schema(operation_id="sessions_end", tags=["account"], responses={204: None})
    def delete(self, request: Request, pk: int) -> Response:
        """End one session of the user."""
        try:
            end_session(user=self.user, pk=pk)
        except Refusal:
            raise exceptions.NotFound from None
        return Response(status=204)


class PersonalDataView(FileView):
    """The user's personal data. For everyone."""

    @extend_schema(
        operation_id="me_data",
        tags=["account"],
        responses={(200, "application/json"): OpenApiTypes.OBJECT},
    )
    def get(self, request: Request) -> StreamingHttpResponse:
        """Download every row about the user. Requires a browser session with recent reauthentication, not a
        token."""
        _require_proof(request)
        return attachment(
            personal_data(self.user), name="rondo-my-data.json", content_type="application/json"
        )


class DeletionSerializer(serializers.Serializer[Any]):
    """The account to delete."""

    username = serializers.CharField(max_length=150, help_text="One's own user name, so that it is no slip.")


class DeletionView(ApiView):
    """Deletion of the user's account. For everyone."""

    # The deleted user cannot repeat the request.
    keeps_answers = False

    @extend_schema(
        operation_id="me_delete", tags=["account"], request=DeletionSerializer, responses={204: None}
    )
    def post(self, request: Request) -> Response:
        """Delete the user's account permanently; judgments stay under a pseudonym. Requires a browser session
        with recent reauthentication, not a token."""
        _require_proof(request)
        if read_body(DeletionSerializer, request)["username"] != self.user.username:
            raise Refusal("user_name_differs", _("This is not your user name."), field="username")
        delete_account(user=self.user)
        logout(request._request)
        return Response(status=204)


def _require_proof(request: Request) -> None:
    """Require recent reauthentication: a cookie or token alone may be stolen."""
    require_session(request)
    try:
        _proven(request._request)
    except ReauthenticationRequired as error:
        raise exceptions.PermissionDenied(
            _("Confirm at /account/reauthenticate/ that it is you, then ask again.")
        ) from error


@reauthentication_required  # type: ignore[untyped-decorator]
def _proven(request: HttpRequest) -> None:
    """Raise `ReauthenticationRequired` if the last proof is too old."""


def _current(request: Request) -> str:
    """Return the key of the current session; empty for a token."""
    return "" if request.auth is not None else str(request.session.session_key or "")
