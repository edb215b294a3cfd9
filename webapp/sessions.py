"""Sessions in the database, as Django keeps them; looked up with a query that is written once."""

from django.contrib.sessions.backends import db
from django.contrib.sessions.models import Session
from django.db.models import CharField, DateTimeField
from django.utils import timezone

from annotation.prepared import Prepared

_SESSION = Prepared(
    lambda p: Session.objects.filter(
        session_key=p("key", CharField()), expire_date__gt=p("now", DateTimeField())
    )
)


class SessionStore(db.SessionStore):
    """Asked on every request. Without a row the session is gone, signed out or run out."""

    def _get_session_from_db(self) -> Session | None:
        found = _SESSION.first(key=self.session_key, now=timezone.now())
        if found is None:
            self._session_key = None
        return found
