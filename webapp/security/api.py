"""One's own sessions by way of the API."""

from allauth.usersessions.models import UserSession
from drf_spectacular.utils import extend_schema
from rest_framework import exceptions, serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ApiView
from annotation.errors import Refusal
from webapp.security.accounts import end_other_sessions, end_session, open_sessions


class SessionSerializer(serializers.ModelSerializer[UserSession]):
    """A browser in which somebody is signed in."""

    is_current = serializers.SerializerMethodField(help_text="Whether this request comes from it.")

    class Meta:
        model = UserSession
        fields = ("id", "ip", "user_agent", "created_at", "last_seen_at", "is_current")

    def get_is_current(self, session: UserSession) -> bool:
        """A token belongs to no session."""
        return bool(session.session_key == self.context["current"])


class SessionsView(ApiView):
    """One's sessions. For everyone."""

    @extend_schema(operation_id="sessions_list", tags=["account"], responses=SessionSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List where one is signed in, the last used first."""
        rows = open_sessions(user=self.user)
        return Response(SessionSerializer(rows, many=True, context={"current": _current(request)}).data)

    @extend_schema(operation_id="sessions_end_others", tags=["account"], responses={204: None})
    def delete(self, request: Request) -> Response:
        """End all of one's sessions but the one that asks; a token ends all."""
        end_other_sessions(user=self.user, current=_current(request))
        return Response(status=204)


class SessionView(ApiView):
    """One of one's sessions. For everyone."""

    @extend_schema(operation_id="sessions_end", tags=["account"], responses={204: None})
    def delete(self, request: Request, pk: int) -> Response:
        """End one of one's sessions: its next request is nobody's."""
        try:
            end_session(user=self.user, pk=pk)
        except Refusal:
            raise exceptions.NotFound from None
        return Response(status=204)


def _current(request: Request) -> str:
    """The key of the session that asks; empty for a token."""
    return "" if request.auth is not None else str(request.session.session_key or "")
