"""Who signs in, as Django does it; the person of a request is looked up with a query that is written once."""

from django.contrib.auth.backends import ModelBackend

from annotation.models import User
from annotation.prepared import Prepared

_PERSON = Prepared(lambda p: User.objects.filter(pk=p("user")))


class SignIn(ModelBackend):
    """By name and password. Asked for the person on every request."""

    def get_user(self, user_id: int) -> User | None:
        """The person, if they may still sign in."""
        user = _PERSON.first(user=user_id)
        return user if user is not None and self.user_can_authenticate(user) else None
